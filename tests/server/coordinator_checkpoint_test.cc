// Checkpoints as the coordinator leads them, and jobs that go back to one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;
constexpr SessionId kNewShard = 51;

// Options of a job with a folder for checkpoints.
CoordinatorOptions DurableOptions(int workers, int shards,
                                  int max_workers = 0) {
  CoordinatorOptions options = OptionsOf(workers, shards, max_workers);
  options.has_checkpoints = true;
  return options;
}

CheckpointPart FailedPart(int64_t round, uint64_t epoch,
                          const std::string& why) {
  CheckpointPart part;
  part.epoch = epoch;
  part.round = round;
  part.error = why;
  return part;
}

TEST(CoordinatorCheckpointTest, ManifestIsWrittenOnceAllPartsAreThere) {
  CoordinatorDriver driver(DurableOptions(2, 2));
  driver.Gather();
  EXPECT_THAT(driver.Say(kShard0, PartOf(0, 3, 1)).completed, IsEmpty());
  const Reaction whole = driver.Say(kShard1, PartOf(1, 3, 1));
  ASSERT_THAT(whole.completed, SizeIs(1));
  EXPECT_EQ(whole.completed[0].job, driver.coordinator().job());
  const CheckpointRecord& record = whole.completed[0].record;
  EXPECT_EQ(record.round, 3);
  EXPECT_EQ(record.contributions, 8);
  ASSERT_THAT(record.files, SizeIs(2));
  EXPECT_EQ(record.files[1].name, "shard-1-epoch-1");
  EXPECT_EQ(record.bytes(), 201);
  EXPECT_EQ(driver.Status().checkpoint.round, kInitialRound);

  const Reaction done = driver.Checkpoint(3, absl::OkStatus());
  EXPECT_THAT(done.announced,
              ElementsAre("checkpoint of round 3: 201 bytes in 2 files"));
  ASSERT_THAT(done.saved, SizeIs(1));
  EXPECT_EQ(done.saved[0].checkpoints.newest->round, 3);
  const JobStatus status = driver.Status();
  EXPECT_EQ(status.checkpoint.round, 3);
  EXPECT_EQ(status.checkpoint.contributions, 8);
  EXPECT_EQ(status.checkpoint.bytes, 201);
}

// A shard may die early; then the job goes back to round 0.
TEST(CoordinatorCheckpointTest, FirstRoundIsSavedIfThereIsAFolder) {
  CoordinatorDriver with(DurableOptions(1, 1));
  with.Gather();
  EXPECT_TRUE(with.job().IsCheckpoint(0));
  EXPECT_FALSE(with.Status().checkpoint.wanted);
  CoordinatorDriver without(OptionsOf(1, 1));
  without.Gather();
  EXPECT_FALSE(without.job().IsCheckpoint(0));
}

TEST(CoordinatorCheckpointTest, PartsOfWorkersAreIgnored) {
  CoordinatorDriver driver(DurableOptions(1, 1));
  driver.Gather();
  EXPECT_THAT(driver.Say(kWorker0, PartOf(0, 3, 1)).completed, IsEmpty());
  EXPECT_THAT(driver.Say(kWorker0, FailedPart(3, 1, "no")).announced,
              IsEmpty());
  EXPECT_THAT(driver.Say(kShard0, PartOf(0, 3, 1)).completed, SizeIs(1));
}

TEST(CoordinatorCheckpointTest, ManifestThatIsNotWrittenIsNoCheckpoint) {
  CoordinatorDriver driver(DurableOptions(1, 1));
  driver.Gather();
  driver.Say(kShard0, PartOf(0, 3, 1));
  const Reaction failed =
      driver.Checkpoint(3, UnavailableError("disk is full"));
  EXPECT_THAT(failed.announced,
              ElementsAre("no checkpoint of round 3: disk is full"));
  EXPECT_EQ(driver.Status().checkpoint.round, kInitialRound);
  EXPECT_EQ(driver.Status().checkpoint.failure, "disk is full");
  // A second outcome of the same manifest is ignored.
  EXPECT_THAT(driver.Checkpoint(3, absl::OkStatus()).announced, IsEmpty());
}

// A disk may be slower than the shards.
TEST(CoordinatorCheckpointTest, ManifestsMayBeWrittenSideBySide) {
  CoordinatorDriver driver(DurableOptions(1, 1));
  driver.Gather();
  driver.Say(kShard0, PartOf(0, 3, 1));
  driver.Say(kShard0, PartOf(0, 4, 1));
  driver.Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver.Status().checkpoint.round, 3);
  driver.Checkpoint(4, UnavailableError("disk is full"));
  EXPECT_EQ(driver.Status().checkpoint.round, 3);
}

TEST(CoordinatorRequestTest, RequestBringsAnEpochThatSavesItsFirstStep) {
  CoordinatorDriver driver(DurableOptions(2, 1));
  driver.Gather();
  const Reaction asked = driver.RequestCheckpoint();
  EXPECT_THAT(HearersOf<PrepareEpoch>(asked),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  EXPECT_TRUE(driver.Status().checkpoint.wanted);
  driver.ReportRest(6);
  EXPECT_EQ(driver.job().epoch, 2u);
  EXPECT_EQ(driver.job().checkpoint_round, 7);
  EXPECT_TRUE(driver.job().IsCheckpoint(7));
  // A second request is for the same checkpoint.
  EXPECT_THAT(driver.RequestCheckpoint().sent, IsEmpty());

  // The checkpoint of an earlier round does not end the request.
  driver.MakeCheckpoint(6);
  EXPECT_TRUE(driver.Status().checkpoint.wanted);
  driver.MakeCheckpoint(7);
  EXPECT_FALSE(driver.Status().checkpoint.wanted);
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
  // The next request is for another checkpoint.
  EXPECT_THAT(driver.RequestCheckpoint().sent, SizeIs(3));
}

TEST(CoordinatorRequestTest, FailedPartEndsTheRequestWithTheReason) {
  CoordinatorDriver driver(DurableOptions(2, 2));
  driver.Gather();
  driver.RequestCheckpoint();
  driver.ReportRest(6);
  driver.Say(kShard0, PartOf(0, 7, 2));
  const Reaction failed = driver.Say(kShard1, FailedPart(7, 2, "no\nspace"));
  EXPECT_THAT(failed.announced,
              ElementsAre("no checkpoint of round 7: shard 1 (s1 at s1:1) "
                          "could not write its part: no\\nspace"));
  EXPECT_FALSE(driver.Status().checkpoint.wanted);
  EXPECT_EQ(driver.Status().checkpoint.round, kInitialRound);
  EXPECT_THAT(driver.Status().checkpoint.failure, HasSubstr("no\\nspace"));
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorRequestTest, FailureOfAnEarlierRoundDoesNotEndTheRequest) {
  CoordinatorDriver driver(DurableOptions(2, 1));
  driver.Gather();
  driver.RequestCheckpoint();
  driver.Say(kShard0, FailedPart(5, 1, "slow"));
  driver.ReportRest(6);
  ASSERT_EQ(driver.job().checkpoint_round, 7);
  driver.Say(kShard0, FailedPart(6, 1, "slow"));
  EXPECT_TRUE(driver.Status().checkpoint.wanted);
  EXPECT_THAT(driver.Status().checkpoint.failure, HasSubstr("slow"));
  driver.MakeCheckpoint(7);
  EXPECT_FALSE(driver.Status().checkpoint.wanted);
}

// The dead worker may not have sent its layers to the shards.
TEST(CoordinatorRequestTest,
     RequestIsRepeatedInEachEpochUntilTheCheckpointIsMade) {
  CoordinatorDriver driver(DurableOptions(2, 1));
  driver.Gather();
  driver.RequestCheckpoint();
  driver.ReportRest(6);
  driver.Break(kWorker0);
  driver.Pass(absl::Seconds(1.5));
  driver.ReportRest(9);
  EXPECT_EQ(driver.job().epoch, 3u);
  EXPECT_EQ(driver.job().checkpoint_round, 10);
  driver.MakeCheckpoint(10);
  EXPECT_FALSE(driver.Status().checkpoint.wanted);
  // The next epoch plans no other checkpoint.
  driver.Say(kNew, WorkerRequest("new"));
  driver.ReportRest(12);
  EXPECT_EQ(driver.job().epoch, 4u);
  EXPECT_EQ(driver.job().checkpoint_round, 10);
  // After another request the next epoch does.
  driver.RequestCheckpoint();
  driver.ReportRest(13);
  EXPECT_EQ(driver.job().checkpoint_round, 14);
}

TEST(CoordinatorRequestTest, RequestNeedsARunningJobWithAFolder) {
  const auto request = [](CoordinatorDriver& driver) {
    const absl::Status status = driver.TryRequestCheckpoint();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(driver.coordinator().checkpoints().wanted());
    return std::string(status.message());
  };
  CoordinatorDriver driver(DurableOptions(1, 1));
  EXPECT_THAT(request(driver),
              HasSubstr("job training is waiting, not running"));
  driver.Gather();
  driver.Fail("no reason");
  EXPECT_THAT(request(driver), HasSubstr("failed, not running"));
  CoordinatorDriver without(OptionsOf(1, 1));
  without.Gather();
  EXPECT_THAT(request(without), HasSubstr("--checkpoint-dir"));
}

// Two workers and two shards have made a checkpoint of round 3. LoseShard loses
// shard 1.
class LostShardTest : public testing::Test {
 protected:
  explicit LostShardTest(bool has_checkpoint = true)
      : driver_(DurableOptions(2, 2, /*max_workers=*/3)) {
    driver_.Gather();
    if (has_checkpoint) driver_.MakeCheckpoint(3);
  }
  Reaction LoseShard() {
    driver_.Break(kShard1);
    return driver_.Pass(absl::Seconds(1.5));
  }
  // Lets seconds pass. All members send heartbeats, also the new server, which
  // is in no epoch yet.
  void PassWithNewShard(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      driver_.Pass(absl::Seconds(1));
      driver_.Say(kNewShard, Heartbeat());
    }
  }
  JoinRequest AnotherShard() {
    JoinRequest request = ShardRequest(1);
    request.incarnation = 99;
    request.has_checkpoints = true;
    request.name = "another";
    request.data_address = "another:1";
    return request;
  }
  void ExpectRestarted(const Reaction& on, const std::vector<SessionId>& all) {
    EXPECT_THAT(HearersOf<EpochStart>(on),
                testing::UnorderedElementsAreArray(all));
    for (const SessionId session : all) {
      EXPECT_TRUE(Heard<EpochStart>(on, session).from_base) << session;
    }
    EXPECT_EQ(driver_.job().history.base_round, 3);
    EXPECT_EQ(driver_.job().history.first_step, 4);
    EXPECT_EQ(driver_.job().history.contributions_before, 8);
    for (const EpochWorker& each : driver_.job().workers) {
      EXPECT_EQ(each.first_step, 4);
    }
  }
  CoordinatorDriver driver_;
};

class LostShardWithoutCheckpointTest : public LostShardTest {
 protected:
  LostShardWithoutCheckpointTest() : LostShardTest(/*has_checkpoint=*/false) {}
};

TEST_F(LostShardWithoutCheckpointTest, EndsTheJobWithTheReason) {
  const Reaction failed = LoseShard();
  EXPECT_EQ(driver_.state(), JobState::kLost);
  EXPECT_THAT(driver_.coordinator().reason(),
              AllOf(HasSubstr("shard 1 (s1 at s1:1) was removed: "),
                    HasSubstr("there is no checkpoint to go on from")));
  EXPECT_THAT(HearersOf<JobOver>(failed),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  ASSERT_THAT(failed.saved, SizeIs(1));
  EXPECT_EQ(failed.saved[0].state, JobState::kLost);
}

// A checkpoint that is nearly complete is awaited.
TEST_F(LostShardWithoutCheckpointTest, ManifestUnderWayIsEnough) {
  driver_.Say(kShard0, PartOf(0, 3, 1));
  driver_.Say(kShard1, PartOf(1, 3, 1));
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(6);
  EXPECT_EQ(driver_.job().epoch, 1u);
  ExpectRestarted(driver_.Checkpoint(3, absl::OkStatus()),
                  {kShard0, kWorker0, kWorker1, kNewShard});
}

TEST_F(LostShardWithoutCheckpointTest, ManifestThatFailsEndsTheJob) {
  driver_.Say(kShard0, PartOf(0, 3, 1));
  driver_.Say(kShard1, PartOf(1, 3, 1));
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(6);
  driver_.Checkpoint(3, UnavailableError("disk is full"));
  EXPECT_EQ(driver_.state(), JobState::kLost);
  EXPECT_THAT(driver_.coordinator().reason(),
              HasSubstr("there is no checkpoint to go on from"));
}

TEST_F(LostShardTest, JobWaitsForAnotherShard) {
  const Reaction lost = LoseShard();
  EXPECT_THAT(lost.announced, Contains(HasSubstr("waits for another shard 1")));
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  driver_.ReportRest(6);
  EXPECT_EQ(driver_.job().epoch, 1u);
  const Reaction told = driver_.Pass(absl::Seconds(3));
  EXPECT_THAT(Heard<Waiting>(told, kWorker0).text,
              HasSubstr("waits for shard 1 of 2"));
  EXPECT_EQ(driver_.Status().waiting, Heard<Waiting>(told, kShard0).text);
}

TEST_F(LostShardTest, AllMembersGoBackOnceAnotherShardIsThere) {
  LoseShard();
  driver_.ReportRest(6);
  const Reaction on = driver_.Say(kNewShard, AnotherShard());
  ExpectRestarted(on, {kShard0, kWorker0, kWorker1, kNewShard});
  EXPECT_EQ(driver_.job().epoch, 2u);
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 4}, EpochWorker{1, 4}));
  EXPECT_THAT(
      on.announced,
      Contains(HasSubstr("shard 1 is back; 2 of 2 workers, 2 of 2 servers; "
                         "back to the checkpoint of round 3: step 4 is "
                         "next, 3 steps are done again")));
  // The next epoch does not go back again.
  driver_.Say(kNew, WorkerRequest("new"));
  const Reaction next = driver_.ReportRest(5);
  EXPECT_FALSE(Heard<EpochStart>(next, kWorker0).from_base);
  EXPECT_EQ(driver_.job().history.base_round, 3);
  EXPECT_EQ(driver_.job().history.contributions_before, 8 + 2 * 2);
}

TEST_F(LostShardTest, WorkerThatJoinsMeanwhileStartsWithTheOthers) {
  LoseShard();
  driver_.ReportRest(6);
  EXPECT_THAT(driver_.Say(kNew, WorkerRequest("new")).completed, IsEmpty());
  ExpectRestarted(driver_.Say(kNewShard, AnotherShard()),
                  {kShard0, kWorker0, kWorker1, kNew, kNewShard});
  EXPECT_EQ(driver_.job().worker_count(), 3);
}

TEST_F(LostShardTest, AnotherShardTakesAPlaceWithoutSessionAtOnce) {
  driver_.Break(kShard1);
  const Reaction joined = driver_.Say(kNewShard, AnotherShard());
  EXPECT_THAT(joined.announced, Contains(HasSubstr("takes its place")));
  ExpectRestarted(driver_.ReportRest(6),
                  {kShard0, kWorker0, kWorker1, kNewShard});
  // The old process is told that it is no member any more.
  const Reaction back = driver_.ResumeIn(kNew, kShard1);
  EXPECT_EQ(RefusalIn(back, kNew).code(), absl::StatusCode::kCancelled);
}

// A server is killed and started again; the end of its session comes late.
TEST_F(LostShardTest, AnotherShardWaitsUntilTheSessionInThePlaceBreaks) {
  const Reaction joined = driver_.Say(kNewShard, AnotherShard());
  EXPECT_THAT(joined.sent, SizeIs(1));
  EXPECT_THAT(HearersOf<Waiting>(joined), ElementsAre(kNewShard));
  // This message was sent before the claim.
  driver_.Beat(kShard1, 5, 4);
  const Reaction broken = driver_.Break(kShard1);
  EXPECT_THAT(broken.announced, Contains(HasSubstr("takes its place")));
  ExpectRestarted(driver_.ReportRest(6),
                  {kShard0, kWorker0, kWorker1, kNewShard});
}

// The host of the member is gone, so its session stays open.
TEST_F(LostShardTest, AnotherShardWaitsUntilTheMemberInThePlaceIsDead) {
  driver_.Say(kNewShard, AnotherShard());
  Reaction lost;
  for (int i = 0; i < 40 && lost.announced.empty(); ++i) {
    lost = driver_.Pass(absl::Seconds(0.5), {kShard1});
    EXPECT_THAT(HearersOf<Refusal>(lost), Not(Contains(kNewShard)));
  }
  EXPECT_THAT(lost.announced, Contains(HasSubstr("shard 1")));
  ExpectRestarted(driver_.ReportRest(6),
                  {kShard0, kWorker0, kWorker1, kNewShard});
}

// Messages that arrive after a pause may have been sent before the claim.
TEST_F(LostShardTest, AnotherShardWaitsWhileTheCoordinatorStandsStill) {
  driver_.Say(kNewShard, AnotherShard());
  driver_.StandStill(absl::Seconds(3));
  EXPECT_THAT(HearersOf<Refusal>(driver_.Tick()), IsEmpty());
  driver_.StandStill(absl::Seconds(3));
  // This message was sent before the claim.
  EXPECT_THAT(HearersOf<Refusal>(driver_.Beat(kShard1, 5, 4)), IsEmpty());
  EXPECT_THAT(driver_.Break(kShard1).announced,
              Contains(HasSubstr("takes its place")));
}

// The first of two waiting processes may die as well.
TEST_F(LostShardTest, SecondWaitingShardJoinsAfterTheFirstHasDied) {
  JoinRequest third = AnotherShard();
  third.incarnation = 100;
  driver_.Say(kNewShard, AnotherShard());
  driver_.Say(kNew, third);
  Reaction lost;
  for (int i = 0; i < 40 && lost.announced.empty(); ++i) {
    lost = driver_.Pass(absl::Seconds(0.5), {kShard1});
  }
  EXPECT_THAT(HearersOf<Refusal>(lost), Not(Contains(kNew)));
  EXPECT_THAT(HearersOf<Refusal>(driver_.Break(kNewShard)), IsEmpty());
  ExpectRestarted(driver_.ReportRest(6), {kShard0, kWorker0, kWorker1, kNew});
}

TEST_F(LostShardTest, WaitingShardMayComeInANewSession) {
  driver_.Say(kNewShard, AnotherShard());
  EXPECT_THAT(driver_.Say(kNew, AnotherShard()).ended, ElementsAre(kNewShard));
  EXPECT_THAT(driver_.Break(kShard1).announced,
              Contains(HasSubstr("takes its place")));
  ExpectRestarted(driver_.ReportRest(6), {kShard0, kWorker0, kWorker1, kNew});
}

TEST_F(LostShardTest, WaitingShardThatHasGoneIsForgotten) {
  driver_.Say(kNewShard, AnotherShard());
  driver_.Break(kNewShard);
  const Reaction broken = LoseShard();
  EXPECT_THAT(broken.announced, Not(Contains(HasSubstr("takes its place"))));
  ExpectRestarted(
      [&] {
        driver_.Say(kNew, AnotherShard());
        return driver_.ReportRest(6);
      }(),
      {kShard0, kWorker0, kWorker1, kNew});
}

TEST_F(LostShardTest, WaitingShardThatJoinsTwiceIsRefused) {
  driver_.Say(kNewShard, AnotherShard());
  EXPECT_EQ(RefusalIn(driver_.Say(kNewShard, AnotherShard()), kNewShard).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(LostShardTest, JobGoesBackToTheNewestCheckpoint) {
  driver_.MakeCheckpoint(5);
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(6);
  EXPECT_EQ(driver_.job().history.base_round, 5);
  EXPECT_EQ(driver_.job().history.contributions_before, 12);
}

// Otherwise the manifest would be of a round that is done again.
TEST_F(LostShardTest, ManifestUnderWayIsAwaited) {
  driver_.Say(kShard0, PartOf(0, 5, 1));
  driver_.Say(kShard1, PartOf(1, 5, 1));
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  EXPECT_THAT(HearersOf<EpochStart>(driver_.ReportRest(6)), IsEmpty());
  driver_.Checkpoint(5, absl::OkStatus());
  EXPECT_EQ(driver_.job().history.base_round, 5);
}

// The disk of the coordinator hangs with the manifest.
TEST_F(LostShardTest, ManifestThatHangsIsGivenUpAfterALease) {
  driver_.Say(kShard0, PartOf(0, 5, 1));
  driver_.Say(kShard1, PartOf(1, 5, 1));
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(6);
  EXPECT_THAT(driver_.Status().waiting,
              HasSubstr("waits for the manifest of round 5; members now"));
  const auto lease_seconds =
      static_cast<int>(absl::ToInt64Seconds(DurableOptions(2, 2).lease()));
  PassWithNewShard(lease_seconds - 1);
  EXPECT_EQ(driver_.job().epoch, 1u);
  const Reaction back = driver_.Pass(absl::Seconds(2));
  EXPECT_THAT(back.announced,
              Contains(HasSubstr("the job goes back without the checkpoint of "
                                 "round 5: its manifest has not been")));
  ExpectRestarted(back, {kShard0, kWorker0, kWorker1, kNewShard});
  // The job makes this checkpoint again. The late manifest is none of it.
  driver_.Say(kShard0, PartOf(0, 5, 2));
  EXPECT_THAT(driver_.Say(kNewShard, PartOf(1, 5, 2)).completed, SizeIs(1));
  const Reaction late = driver_.Checkpoint(5, absl::OkStatus());
  ASSERT_THAT(late.dropped, SizeIs(1));
  EXPECT_EQ(late.dropped[0].record.files[0].name, "shard-0-epoch-1");
  EXPECT_EQ(driver_.Status().checkpoint.round, 3);
  EXPECT_THAT(driver_.Checkpoint(5, absl::OkStatus()).dropped, IsEmpty());
  EXPECT_EQ(driver_.Status().checkpoint.round, 5);
}

// Without an older checkpoint the job can only wait.
TEST_F(LostShardWithoutCheckpointTest, OnlyManifestIsAwaitedForEver) {
  driver_.Say(kShard0, PartOf(0, 3, 1));
  driver_.Say(kShard1, PartOf(1, 3, 1));
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(6);
  PassWithNewShard(60);
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  ExpectRestarted(driver_.Checkpoint(3, absl::OkStatus()),
                  {kShard0, kWorker0, kWorker1, kNewShard});
}

TEST_F(LostShardTest, PartsFromBeforeAndAfterGoingBackAreNotMixed) {
  driver_.Say(kShard0, PartOf(0, 5, 1));
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(6);
  EXPECT_THAT(driver_.Say(kNewShard, PartOf(1, 5, 2)).completed, IsEmpty());
  EXPECT_THAT(driver_.Say(kShard0, PartOf(0, 5, 1)).completed, IsEmpty());
  EXPECT_THAT(driver_.Say(kShard0, PartOf(0, 5, 2)).completed, SizeIs(1));
}

// The new epoch plans the requested checkpoint again.
TEST_F(LostShardTest, RequestIsKeptWhenTheJobGoesBack) {
  driver_.RequestCheckpoint();
  driver_.ReportRest(6);
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(8);
  EXPECT_EQ(driver_.job().history.base_round, 3);
  EXPECT_EQ(driver_.job().checkpoint_round, 4);
  EXPECT_TRUE(driver_.Status().checkpoint.wanted);
}

TEST_F(LostShardTest, MemberThatMissedGoingBackHearsOfItWhenItResumes) {
  LoseShard();
  driver_.Say(kNewShard, AnotherShard());
  driver_.ReportRest(6);
  driver_.Break(kWorker1);
  // The worker had reported for this epoch, and missed its start.
  Resume resume = driver_.ResumeOf(kWorker1);
  resume.epoch = 1;
  const Reaction back = driver_.Say(kNew, resume);
  EXPECT_TRUE(Heard<EpochStart>(back, kNew).from_base);
  EXPECT_EQ(Heard<EpochStart>(back, kNew).job->history.base_round, 3);
}

// All workers die, and with them the only values of layer fc.
TEST(CoordinatorCheckpointRestartTest, ValuesOfDeadWorkersAreInTheCheckpoint) {
  CoordinatorOptions options = DurableOptions(2, 1);
  options.spec.rules.forced = Scheme::kFactor;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.MakeCheckpoint(3);
  // Another manifest is being written, and is awaited.
  driver.Say(kShard0, PartOf(0, 4, 1));
  driver.Break(kWorker0);
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.ReportRest(6);
  EXPECT_THAT(HearersOf<EpochStart>(driver.Say(kNew, WorkerRequest("new"))),
              IsEmpty());
  const Reaction on = driver.Checkpoint(4, absl::OkStatus());
  EXPECT_TRUE(Heard<EpochStart>(on, kShard0).from_base);
  EXPECT_EQ(driver.job().history.base_round, 4);
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{2, 5}));
  EXPECT_EQ(driver.job().history.contributions_before, 10);
}

TEST(CoordinatorCheckpointRestartTest, JobMayBeginWithACheckpoint) {
  CoordinatorOptions options = DurableOptions(2, 1);
  options.start_checkpoint = CheckpointRecord{8, 31, {{"file", 5, 7}}};
  options.restored_layers = WorkerRequest("w").layers;
  CoordinatorDriver driver(options);
  driver.Gather();
  EXPECT_EQ(driver.job().epoch, 1u);
  EXPECT_EQ(driver.job().history.base_round, 8);
  EXPECT_EQ(driver.job().history.first_step, 9);
  EXPECT_EQ(driver.job().history.contributions_before, 31);
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 9}, EpochWorker{1, 9}));
  EXPECT_EQ(driver.Status().checkpoint.round, 8);
  EXPECT_EQ(driver.Status().checkpoint.contributions, 31);
  driver.MakeCheckpoint(10);
  EXPECT_EQ(driver.Status().checkpoint.contributions, 31 + 2 * 2);
}

TEST(CoordinatorCheckpointRestartTest,
     ModelMayDifferFromTheCheckpointInItsRows) {
  CoordinatorOptions options = DurableOptions(1, 1);
  options.start_checkpoint = CheckpointRecord{8, 31, {{"file", 5, 7}}};
  options.restored_layers = WorkerRequest("w").layers;
  CoordinatorDriver driver(options);
  JoinRequest other = WorkerRequest("other");
  other.layers[0].name = "renamed";
  const absl::Status why = RefusalIn(driver.Say(1, other), 1);
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("the checkpoint of round 8"));
  JoinRequest rows = WorkerRequest("rows");
  rows.layers[1].rows += 5;
  EXPECT_TRUE(RefusalIn(driver.Say(2, rows), 2).ok());
}

TEST(CoordinatorCheckpointRestartTest,
     WorkersKeepAsMuchStateAsTheCheckpointHas) {
  CoordinatorOptions options = DurableOptions(1, 1);
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  options.start_checkpoint = CheckpointRecord{8, 31, {{"file", 5, 7}}};
  options.restored_layers = WorkerRequest("w").layers;
  options.restored_state_arrays = 2;
  CoordinatorDriver driver(options);
  JoinRequest request = WorkerRequest("other");
  request.caller.state_arrays = 1;
  const absl::Status why = RefusalIn(driver.Say(1, request), 1);
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(why.message(),
            "worker other keeps 1 arrays of optimizer state, the checkpoint of "
            "round 8 has 2");
  request.caller.state_arrays = 2;
  EXPECT_TRUE(RefusalIn(driver.Say(2, request), 2).ok());
}

TEST(CoordinatorCheckpointJoinTest, ShardHasAFolderIfTheCoordinatorHas) {
  for (const bool has : {false, true}) {
    CoordinatorOptions options = OptionsOf(1, 1);
    options.has_checkpoints = has;
    CoordinatorDriver driver(options);
    JoinRequest request = ShardRequest(0);
    request.has_checkpoints = !has;
    const absl::Status why = RefusalIn(driver.Say(1, request), 1);
    EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(why.message()),
                HasSubstr(has ? "shard 0, has no --checkpoint-dir, and the "
                                "coordinator has one:"
                              : "shard 0, has a --checkpoint-dir, and the "
                                "coordinator has none:"));
    request.has_checkpoints = has;
    EXPECT_TRUE(RefusalIn(driver.Say(2, request), 2).ok());
  }
}

JoinRequest Keeping(const std::string& name, int arrays) {
  JoinRequest request = WorkerRequest(name);
  request.caller.state_arrays = arrays;
  return request;
}

TEST(CoordinatorCheckpointJoinTest, WorkersThatUpdateKeepTheSameStateArrays) {
  CoordinatorOptions options = OptionsOf(2, 1);
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  CoordinatorDriver driver(options);
  driver.Say(1, Keeping("a", 2));
  const absl::Status why = RefusalIn(driver.Say(2, Keeping("b", 1)), 2);
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("b keeps 1 arrays of optimizer state, worker a has 2"));
  driver.Say(3, Keeping("c", 2));
  driver.Say(4, ShardRequest(0));
  ASSERT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().state_arrays, 2);
}

// No worker is left to compare with.
TEST(CoordinatorCheckpointJoinTest,
     StateArraysStayTheSameAfterAllWorkersHaveDied) {
  CoordinatorOptions options = OptionsOf(1, 1);
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  CoordinatorDriver driver(options);
  driver.Say(1, Keeping("a", 2));
  driver.Say(2, ShardRequest(0));
  driver.Break(1);
  driver.Pass(absl::Seconds(1.5));
  const absl::Status why = RefusalIn(driver.Say(3, Keeping("b", 1)), 3);
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("b keeps 1 arrays of optimizer state, the job has 2"));
  EXPECT_TRUE(RefusalIn(driver.Say(4, Keeping("c", 2)), 4).ok());
}

TEST(CoordinatorCheckpointJoinTest, StateArraysMayDifferIfTheServersUpdate) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, Keeping("a", 2));
  driver.Say(2, Keeping("b", 0));
  driver.Say(3, ShardRequest(0));
  ASSERT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().state_arrays, 1);  // Number of SGD's arrays.
}

TEST(CoordinatorCheckpointJoinTest, NumberOfStateArraysIsBounded) {
  for (const int arrays : {-1, kStateArraysMax + 1}) {
    CoordinatorDriver driver(OptionsOf(2, 1));
    EXPECT_EQ(RefusalIn(driver.Say(1, Keeping("a", arrays)), 1).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

Heartbeat Stalled(int32_t layer, int64_t round, absl::Duration waited) {
  Heartbeat heartbeat = HeartbeatOf(round, round - 1);
  heartbeat.stall = Stall{layer, round, "worker 1", waited};
  return heartbeat;
}

TEST(CoordinatorStallTest, StallIsAnnouncedAgainAtTwiceTheTime) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const auto announced = [&](int32_t layer, int64_t round, int seconds) {
    return driver.Say(kShard0, Stalled(layer, round, absl::Seconds(seconds)))
        .announced;
  };
  EXPECT_THAT(announced(1, 4, 10),
              ElementsAre("layer fc, round 4 has waited 10s at shard 0 for "
                          "worker 1"));
  for (const int seconds : {11, 15, 19}) {
    EXPECT_THAT(announced(1, 4, seconds), IsEmpty()) << seconds;
  }
  EXPECT_THAT(announced(1, 4, 20), ElementsAre(HasSubstr("waited 20s")));
  EXPECT_THAT(announced(1, 4, 39), IsEmpty());
  EXPECT_THAT(announced(1, 4, 41), ElementsAre(HasSubstr("waited 41s")));
  // Another round stalls, and then another layer.
  EXPECT_THAT(announced(1, 5, 10), ElementsAre(HasSubstr("round 5")));
  EXPECT_THAT(announced(0, 5, 10), ElementsAre(HasSubstr("layer scale")));
  // The stall ends and begins again.
  EXPECT_THAT(driver.Say(kShard0, HeartbeatOf(-1, 5)).announced, IsEmpty());
  EXPECT_THAT(announced(0, 5, 12), ElementsAre(HasSubstr("waited 12s")));
}

TEST(CoordinatorStallTest, StallIsInTheStatusAsLongAsItLasts) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Gather();
  driver.Say(kShard0, Stalled(1, 4, absl::Seconds(10)));
  const auto stall_of = [&](PeerId id) -> std::optional<Stall> {
    for (const auto& member : driver.Status().members) {
      if (member.id != id) continue;
      EXPECT_EQ(member.stalled_layer, member.stall.has_value() ? "fc" : "");
      return member.stall;
    }
    return std::nullopt;
  };
  ASSERT_TRUE(stall_of(PeerId::Shard(0)).has_value());
  EXPECT_EQ(stall_of(PeerId::Shard(0))->round, 4);
  EXPECT_EQ(stall_of(PeerId::Shard(0))->missing, "worker 1");
  EXPECT_FALSE(stall_of(PeerId::Worker(0)).has_value());
  driver.Say(kShard0, HeartbeatOf(-1, 4));
  EXPECT_FALSE(stall_of(PeerId::Shard(0)).has_value());
}

TEST(CoordinatorStallTest, InvalidStallCostsItsSenderItsMembership) {
  Heartbeat text = Stalled(0, 4, absl::Seconds(1));
  text.stall->missing.assign(100'000, 'a');
  for (const Heartbeat& heartbeat :
       {Stalled(2, 4, absl::Seconds(1)), Stalled(-1, 4, absl::Seconds(1)),
        Stalled(0, -5, absl::Seconds(1)), Stalled(0, 4, absl::ZeroDuration()),
        text}) {
    CoordinatorDriver driver(OptionsOf(2, 1));
    driver.Gather();
    EXPECT_EQ(RefusalIn(driver.Say(kWorker1, heartbeat), kWorker1).code(),
              absl::StatusCode::kCancelled);
  }
  // Before the job begins there are no layers.
  CoordinatorDriver waiting(OptionsOf(2, 1));
  waiting.Say(1, WorkerRequest("a"));
  EXPECT_FALSE(
      RefusalIn(waiting.Say(1, Stalled(0, 4, absl::Seconds(1))), 1).ok());
}

// The job has checkpoints of rounds 3 and 5, and has gone back to round 5 in
// epoch 2, because it has lost shard 1.
class DamagedCheckpointTest : public LostShardTest {
 protected:
  DamagedCheckpointTest() {
    driver_.MakeCheckpoint(5);
    LoseShard();
    driver_.Say(kNewShard, AnotherShard());
    driver_.ReportRest(7);
    EXPECT_EQ(driver_.job().history.base_round, 5);
  }
  // A server finds the checkpoint of the present epoch damaged.
  Reaction FindDamage(SessionId server = kNewShard) {
    return driver_.Say(
        server,
        CheckpointDamaged{driver_.job().epoch, driver_.job().history.base_round,
                          "shard-1.safetensors is\ntorn"});
  }
  const std::vector<SessionId> all_ = {kShard0, kWorker0, kWorker1, kNewShard};
};

TEST_F(DamagedCheckpointTest, JobGoesBackToTheOlderCheckpoint) {
  const Reaction found = FindDamage();
  EXPECT_THAT(HearersOf<PrepareEpoch>(found),
              testing::UnorderedElementsAreArray(all_));
  // Other servers may still read the files: they report when they are done.
  EXPECT_THAT(found.set_aside, IsEmpty());
  const Reaction reported = driver_.ReportRest(5);
  ASSERT_THAT(reported.set_aside, SizeIs(1));
  EXPECT_EQ(reported.set_aside[0].round, 5);
  EXPECT_EQ(reported.set_aside[0].job, driver_.coordinator().job());
  EXPECT_THAT(HearersOf<EpochStart>(reported), IsEmpty());
  EXPECT_THAT(driver_.Status().waiting,
              HasSubstr("waits for a checkpoint in place of the damaged one of "
                        "round 5, to go back to"));
  const Reaction back = driver_.SetAside(5, 3);
  EXPECT_THAT(
      back.announced,
      Contains(AllOf(
          HasSubstr("the checkpoint of round 5 is damaged: "
                    "shard-1.safetensors is\\ntorn (found by shard 1 "),
          HasSubstr("Its folder is now set-aside. The job goes back to the "
                    "checkpoint of round 3, which costs 2 steps"))));
  ExpectRestarted(back, all_);
  EXPECT_EQ(driver_.job().epoch, 3u);
  EXPECT_EQ(driver_.Status().checkpoint.round, 3);
  EXPECT_THAT(driver_.Status().checkpoint.damage,
              HasSubstr("that of round 5: shard-1.safetensors"));
  // A restarted coordinator knows it, too.
  ASSERT_FALSE(back.saved.empty());
  EXPECT_EQ(back.saved.back().checkpoints.newest->round, 3);
  // The job saves the round again, and all is well.
  driver_.Say(kShard0, PartOf(0, 5, 3));
  EXPECT_THAT(driver_.Say(kNewShard, PartOf(1, 5, 3)).completed, SizeIs(1));
  driver_.Checkpoint(5, absl::OkStatus());
  EXPECT_EQ(driver_.Status().checkpoint.damage, "");
}

// All servers read the checkpoint at the same time.
TEST_F(DamagedCheckpointTest, SecondServerThatFindsDamageChangesNothing) {
  FindDamage();
  FindDamage(kShard0);
  EXPECT_THAT(driver_.ReportRest(5).set_aside, SizeIs(1));
  EXPECT_THAT(FindDamage(kShard0).set_aside, IsEmpty());
  ExpectRestarted(driver_.SetAside(5, 3), all_);
}

TEST_F(DamagedCheckpointTest, DamageOfAnEarlierEpochOrRoundIsIgnored) {
  const auto say = [this](uint64_t epoch, int64_t round) {
    driver_.Say(kNewShard, CheckpointDamaged{epoch, round, "torn"});
  };
  say(1, 5);
  say(2, 3);
  driver_.Say(kWorker0, CheckpointDamaged{2, 5, "torn"});
  EXPECT_FALSE(driver_.coordinator().epochs().target().has_value());
}

TEST_F(DamagedCheckpointTest, OlderCheckpointMayBeDamagedToo) {
  FindDamage();
  driver_.ReportRest(5);
  driver_.SetAside(5, 3);
  FindDamage();
  EXPECT_THAT(driver_.ReportRest(5).set_aside, SizeIs(1));
  const Reaction lost = driver_.SetAside(3, std::nullopt);
  EXPECT_EQ(driver_.state(), JobState::kLost);
  EXPECT_THAT(driver_.coordinator().reason(),
              AllOf(HasSubstr("no checkpoint is left to go on from"),
                    HasSubstr("that of round 5: shard-1"),
                    HasSubstr("that of round 3: shard-1")));
  EXPECT_THAT(HearersOf<JobOver>(lost),
              testing::UnorderedElementsAreArray(all_));
}

TEST_F(DamagedCheckpointTest, DiskThatFailsIsAskedAgain) {
  FindDamage();
  driver_.ReportRest(5);
  EXPECT_THAT(driver_.FailSetAside(5, UnavailableError("disk")).announced,
              Contains(HasSubstr("an older one cannot be found yet: disk")));
  EXPECT_THAT(driver_.Pass(absl::Seconds(1.5)).set_aside, SizeIs(1));
  ExpectRestarted(driver_.SetAside(5, 3), all_);
}

// The server says it again in its new session, before it reports.
TEST_F(DamagedCheckpointTest, RestartedCoordinatorIsToldAgain) {
  const CoordinatorState state = driver_.Beat(kShard0, 0, 0).saved.empty()
                                     ? driver_.RequestCheckpoint().saved[0]
                                     : CoordinatorState();
  FindDamage();
  driver_.Restart(state);
  driver_.ResumeIn(kNew, kNewShard);
  driver_.Say(kNew, CheckpointDamaged{2, 5, "shard-1 is torn"});
  EXPECT_EQ(driver_.coordinator().checkpoints().setting_aside(), 5);
  EXPECT_TRUE(driver_.coordinator().epochs().Has(ChangeReason::kShardLost));
}

}  // namespace
}  // namespace nereus
