// Checkpoints as the coordinator leads them, and jobs that go back to one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
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
using testing::SizeIs;
using testing::UnorderedElementsAre;

CheckpointPart FailedPart(int64_t round, uint64_t epoch,
                          const std::string& why) {
  CheckpointPart part;
  part.epoch = epoch;
  part.round = round;
  part.error = why;
  return part;
}

TEST(CoordinatorCheckpointTest, ManifestIsWrittenOnceAllPartsAreThere) {
  RunningDriver driver(DurableOptions(2, 2));
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
  RunningDriver with(DurableOptions(1, 1));
  EXPECT_TRUE(with.job().IsCheckpoint(0));
  EXPECT_FALSE(with.Status().checkpoint.wanted);
  RunningDriver without(OptionsOf(1, 1));
  EXPECT_FALSE(without.job().IsCheckpoint(0));
}

TEST(CoordinatorCheckpointTest, PartsOfWorkersAreIgnored) {
  RunningDriver driver(DurableOptions(1, 1));
  EXPECT_THAT(driver.Say(kWorker0, PartOf(0, 3, 1)).completed, IsEmpty());
  EXPECT_THAT(driver.Say(kWorker0, FailedPart(3, 1, "no")).announced,
              IsEmpty());
  EXPECT_THAT(driver.Say(kShard0, PartOf(0, 3, 1)).completed, SizeIs(1));
}

TEST(CoordinatorCheckpointTest, ManifestThatIsNotWrittenIsNoCheckpoint) {
  RunningDriver driver(DurableOptions(1, 1));
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

TEST(CoordinatorRequestTest, RequestBringsAnEpochThatSavesItsFirstStep) {
  RunningDriver driver(DurableOptions(2, 1));
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
  RunningDriver driver(DurableOptions(2, 2));
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
  RunningDriver driver(DurableOptions(2, 1));
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
  RunningDriver driver(DurableOptions(2, 1));
  driver.RequestCheckpoint();
  driver.ReportRest(6);
  driver.Lose(kWorker0);
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
  RunningDriver without(OptionsOf(1, 1));
  EXPECT_THAT(request(without), HasSubstr("--checkpoint-dir"));
}

// Two workers and two shards have made a checkpoint of round 3.
class LostShardTest : public testing::Test {
 protected:
  explicit LostShardTest(bool has_checkpoint = true)
      : driver_(DurableOptions(2, 2, /*max_workers=*/3)) {
    driver_.Gather();
    if (has_checkpoint) driver_.MakeCheckpoint(3);
  }
  // Lets seconds pass. All members send heartbeats, also the new server, which
  // is in no epoch yet.
  void PassWithNewShard(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      driver_.Pass(absl::Seconds(1));
      driver_.Say(kNewShard, Heartbeat());
    }
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
  const Reaction failed = driver_.Lose(kShard1);
  EXPECT_EQ(driver_.state(), JobState::kLost);
  EXPECT_THAT(driver_.coordinator().reason(),
              AllOf(HasSubstr("shard 1 (s1 at s1:1) was removed: "),
                    HasSubstr("there is no checkpoint to go on from")));
  EXPECT_THAT(HearersOf<JobOver>(failed),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  ASSERT_THAT(failed.saved, SizeIs(1));
  EXPECT_EQ(failed.saved[0].state, JobState::kLost);
}

TEST_F(LostShardWithoutCheckpointTest, ManifestThatFailsEndsTheJob) {
  driver_.Say(kShard0, PartOf(0, 3, 1));
  driver_.Say(kShard1, PartOf(1, 3, 1));
  driver_.Lose(kShard1);
  driver_.Replace(kNewShard, 1);
  driver_.ReportRest(6);
  driver_.Checkpoint(3, UnavailableError("disk is full"));
  EXPECT_EQ(driver_.state(), JobState::kLost);
  EXPECT_THAT(driver_.coordinator().reason(),
              HasSubstr("there is no checkpoint to go on from"));
}

TEST_F(LostShardTest, JobWaitsForAnotherShard) {
  const Reaction lost = driver_.Lose(kShard1);
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
  driver_.Lose(kShard1);
  driver_.ReportRest(6);
  const Reaction on = driver_.Replace(kNewShard, 1);
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

// Messages that arrive after a pause may have been sent before the claim.
TEST_F(LostShardTest, AnotherShardWaitsWhileTheCoordinatorStandsStill) {
  driver_.Replace(kNewShard, 1);
  driver_.StandStill(absl::Seconds(3));
  EXPECT_THAT(HearersOf<Refusal>(driver_.Tick()), IsEmpty());
  driver_.StandStill(absl::Seconds(3));
  // This message was sent before the claim.
  EXPECT_THAT(HearersOf<Refusal>(driver_.Beat(kShard1, 5, 4)), IsEmpty());
  EXPECT_THAT(driver_.Break(kShard1).announced,
              Contains(HasSubstr("takes its place")));
}

TEST_F(LostShardTest, WaitingShardThatJoinsTwiceIsRefused) {
  driver_.Replace(kNewShard, 1);
  EXPECT_EQ(RefusalIn(driver_.Replace(kNewShard, 1), kNewShard).code(),
            absl::StatusCode::kInvalidArgument);
}

// The disk of the coordinator hangs with the manifest.
TEST_F(LostShardTest, ManifestThatHangsIsGivenUpAfterALease) {
  driver_.Say(kShard0, PartOf(0, 5, 1));
  driver_.Say(kShard1, PartOf(1, 5, 1));
  driver_.Lose(kShard1);
  driver_.Replace(kNewShard, 1);
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
  driver_.Lose(kShard1);
  driver_.Replace(kNewShard, 1);
  driver_.ReportRest(6);
  PassWithNewShard(60);
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  ExpectRestarted(driver_.Checkpoint(3, absl::OkStatus()),
                  {kShard0, kWorker0, kWorker1, kNewShard});
}

// The new epoch plans the requested checkpoint again.
TEST_F(LostShardTest, RequestIsKeptWhenTheJobGoesBack) {
  driver_.RequestCheckpoint();
  driver_.ReportRest(6);
  driver_.Lose(kShard1);
  driver_.Replace(kNewShard, 1);
  driver_.ReportRest(8);
  EXPECT_EQ(driver_.job().history.base_round, 3);
  EXPECT_EQ(driver_.job().checkpoint_round, 4);
  EXPECT_TRUE(driver_.Status().checkpoint.wanted);
}

// All workers die, and with them the only values of layer fc.
TEST(CoordinatorCheckpointRestartTest, ValuesOfDeadWorkersAreInTheCheckpoint) {
  CoordinatorOptions options = DurableOptions(2, 1);
  options.spec.rules.forced = Scheme::kFactor;
  RunningDriver driver(options);
  driver.MakeCheckpoint(3);
  // Another manifest is being written, and is awaited.
  driver.Say(kShard0, PartOf(0, 4, 1));
  driver.Break(kWorker0);
  driver.Lose(kWorker1);
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
  RunningDriver driver(options);
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
  ExpectRefusal(driver.Say(2, Keeping("b", 1)), 2,
                absl::StatusCode::kFailedPrecondition,
                "b keeps 1 arrays of optimizer state, worker a has 2");
  driver.Say(3, Keeping("c", 2));
  driver.Say(4, ShardRequest(0));
  ASSERT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().state_arrays, 2);
}

TEST(CoordinatorCheckpointJoinTest, StateArraysMayDifferIfTheServersUpdate) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, Keeping("a", 2));
  driver.Say(2, Keeping("b", 0));
  driver.Say(3, ShardRequest(0));
  ASSERT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().state_arrays, 1);  // Number of SGD's arrays.
}

Heartbeat Stalled(int32_t layer, int64_t round, absl::Duration waited) {
  Heartbeat heartbeat = HeartbeatOf(round, round - 1);
  heartbeat.stall = Stall{layer, round, "worker 1", waited};
  return heartbeat;
}

TEST(CoordinatorStallTest, StallIsAnnouncedAgainAtTwiceTheTime) {
  RunningDriver driver(OptionsOf(2, 1));
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
  RunningDriver driver(OptionsOf(1, 1));
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
    RunningDriver driver(OptionsOf(2, 1));
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
    driver_.Lose(kShard1);
    driver_.Replace(kNewShard, 1);
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

// ---- The last checkpoint, after all workers have left.

CoordinatorOptions SavingOptions() {
  CoordinatorOptions options = DurableOptions(/*workers=*/2, /*shards=*/2);
  options.spec.options.checkpoint_every = 2;
  return options;
}

// A job that saves every second step. Both workers have left after step 3.
// Shard 0 has written its part of the last checkpoint, shard 1 has not.
struct CoordinatorLastCheckpointTest : testing::Test {
  CoordinatorLastCheckpointTest() {
    driver.Say(kShard0, PartOf(0, 3, 1));
    driver.Say(kWorker0, Leave{3});
    left = driver.Say(kWorker1, Leave{3});
  }
  // Completes the last checkpoint.
  void Complete() {
    driver.Say(kShard1, PartOf(1, 3, 1));
    driver.Checkpoint(3, absl::OkStatus());
  }
  RunningDriver driver{SavingOptions()};
  Reaction left;
};

TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsCompleteBeforeTheJobIsFinished) {
  EXPECT_THAT(HearersOf<SaveLast>(left),
              UnorderedElementsAre(kShard0, kShard1, kWorker0, kWorker1));
  EXPECT_EQ(Heard<SaveLast>(left, kShard0), (SaveLast{1, 3, 0}));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  const Reaction waiting = driver.Pass(absl::Seconds(5));
  EXPECT_THAT(HearersOf<Waiting>(waiting),
              testing::IsSupersetOf({kWorker0, kWorker1}));
  EXPECT_THAT(driver.Status().waiting,
              HasSubstr("finished except for its last checkpoint, of round 3"));
  driver.Say(kShard1, PartOf(1, 3, 1));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  const Reaction whole = driver.Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver.state(), JobState::kFinished);
  EXPECT_THAT(HearersOf<JobOver>(whole),
              UnorderedElementsAre(kShard0, kShard1, kWorker0, kWorker1));
  EXPECT_EQ(whole.saved.back().checkpoints.newest->round, 3);
  EXPECT_FALSE(driver.coordinator().lacks_last_checkpoint());
}

TEST_F(CoordinatorLastCheckpointTest, FailedLastCheckpointIsNotAwaited) {
  CheckpointPart failed = PartOf(1, 3, 1);
  failed.error = "disk is full";
  driver.Say(kShard1, failed);
  EXPECT_EQ(driver.state(), JobState::kFinished);
  EXPECT_EQ(driver.Status().checkpoint.failure,
            "shard 1 (s1 at s1:1) could not write its part: disk is full");
  EXPECT_TRUE(driver.coordinator().lacks_last_checkpoint());
}

// Event after which the last checkpoint is awaited for some time.
struct Wait {
  const char* name;
  std::function<void(CoordinatorDriver&)> event;
  absl::Duration awaited;  // Time after which it may still come.
  absl::Duration over;     // Time after which the job is finished without it.
};

class LastCheckpointWaitTest : public CoordinatorLastCheckpointTest,
                               public testing::WithParamInterface<Wait> {};

TEST_P(LastCheckpointWaitTest, JobIsFinishedAfterALimitedWait) {
  GetParam().event(driver);
  driver.Pass(GetParam().awaited);
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.Pass(GetParam().over - GetParam().awaited);
  EXPECT_EQ(driver.state(), JobState::kFinished);
  EXPECT_TRUE(driver.coordinator().lacks_last_checkpoint());
}

INSTANTIATE_TEST_SUITE_P(
    Events, LastCheckpointWaitTest,
    testing::Values(
        Wait{"NoEvent", [](auto&) {}, absl::Minutes(29), absl::Minutes(31)},
        Wait{"ShardThatIsGone", [](auto& driver) { driver.Break(kShard1); },
             absl::ZeroDuration(), absl::Seconds(2)},
        // The shards may have got all frames of the workers.
        Wait{"WorkersThatAreGone",
             [](auto& driver) {
               driver.Break(kWorker0);
               driver.Break(kWorker1);
             },
             absl::Seconds(5), absl::Minutes(1)},
        Wait{"LostConnection",
             [](auto& driver) {
               driver.Say(kWorker0, LostPeer{1, PeerId::Shard(1), "reset"});
             },
             absl::ZeroDuration(), absl::Minutes(1)}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointMayComeAfterTheWorkersAreGone) {
  driver.Break(kWorker0);
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(5));
  Complete();
  EXPECT_EQ(driver.state(), JobState::kFinished);
  EXPECT_FALSE(driver.coordinator().lacks_last_checkpoint());
}

TEST_F(CoordinatorLastCheckpointTest, CheckpointThatComesTooLateIsAnnounced) {
  EXPECT_THAT(driver.Pass(absl::Minutes(31)).announced,
              Contains(HasSubstr("no checkpoint of round 3: its parts did not "
                                 "arrive in time")));
}

// The job goes back to the checkpoint of round 1, where the workers begin anew.
TEST(CoordinatorEndTest, JobGoesBackWhenAShardIsLostAtItsEnd) {
  RunningDriver driver(SavingOptions());
  driver.MakeCheckpoint(1);
  driver.Say(kWorker0, Leave{3});
  driver.Say(kWorker1, Leave{3});
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(2));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_THAT(driver.Status().waiting,
              HasSubstr("waits for the place of a lost server to be taken"));
  driver.Replace(kNew, 1);
  const Reaction on = driver.ReportRest(3);
  EXPECT_TRUE(Heard<EpochStart>(on, kWorker0).from_base);
  EXPECT_EQ(driver.job().history.base_round, 1);
  EXPECT_FALSE(driver.Status().members[0].left);
}

TEST_F(CoordinatorLastCheckpointTest, ManifestUnderWayNeedsNoMember) {
  driver.Say(kShard1, PartOf(1, 3, 1));
  for (const SessionId session : {kShard0, kShard1, kWorker0, kWorker1}) {
    driver.Break(session);
  }
  driver.Pass(absl::Seconds(5));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver.state(), JobState::kFinished);
}

// A job that is finished, of which worker 1 has been silent for a lease. All
// other sessions have ended.
class SilentMemberTest : public testing::Test {
 protected:
  SilentMemberTest() : driver_(OptionsOf(/*workers=*/2, /*shards=*/1)) {
    driver_.Gather();
    driver_.Pass(absl::Seconds(12), /*silent=*/{kWorker1});
    driver_.ReportRest(0);
    driver_.Say(kWorker0, Leave{3});
    EXPECT_EQ(driver_.state(), JobState::kFinished);
    driver_.Break(kWorker0);
    driver_.Break(kShard0);
  }
  CoordinatorDriver driver_;
};

// The silent member may live, and must not look for a coordinator that is gone.
TEST_F(SilentMemberTest, MemberThatStoodStillHearsThatTheJobIsFinished) {
  EXPECT_FALSE(driver_.coordinator().everyone_knows());
  JoinRequest request = WorkerRequest("w1");
  request.incarnation += 1;
  const Reaction refused = driver_.Say(60, request);
  EXPECT_EQ(RefusalIn(refused, 60).code(), absl::StatusCode::kOutOfRange);
  driver_.Break(60);
  EXPECT_TRUE(driver_.coordinator().everyone_knows());
}

// A process that has died does not come back.
TEST_F(SilentMemberTest, SilentMemberIsForgottenAMinuteLater) {
  driver_.Pass(absl::Seconds(40), {});
  EXPECT_FALSE(driver_.coordinator().everyone_knows());
  driver_.Pass(absl::Seconds(30), {});
  EXPECT_TRUE(driver_.coordinator().everyone_knows());
}

// Worker 1 sends the worker-owned layers in place of worker 0.
TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointMayTakeLongAfterAWorkerIsGone) {
  const Reaction asked = [&] {
    driver.Break(kWorker0);
    return driver.Pass(absl::Seconds(2));
  }();
  EXPECT_EQ(Heard<SaveLast>(asked, kShard1), (SaveLast{1, 3, 1}));
  driver.Pass(absl::Minutes(5));
  ASSERT_EQ(driver.state(), JobState::kRunning);
  Complete();
  EXPECT_EQ(driver.state(), JobState::kFinished);
  EXPECT_FALSE(driver.coordinator().lacks_last_checkpoint());
}

TEST_F(CoordinatorLastCheckpointTest, WorkerThatCameBackMustHearTheEnd) {
  driver.Break(kWorker0);
  driver.Pass(absl::Seconds(5));
  driver.ResumeIn(60, kWorker0);
  driver.Break(60);
  Complete();
  ASSERT_EQ(driver.state(), JobState::kFinished);
  for (const SessionId session : {kShard0, kShard1, kWorker1}) {
    driver.Break(session);
  }
  // The worker has not heard the end, and may resume to hear it.
  EXPECT_FALSE(driver.coordinator().everyone_knows());
}

TEST_F(CoordinatorLastCheckpointTest, RequestDuringTheLastCheckpointIsRefused) {
  EXPECT_EQ(driver.TryRequestCheckpoint().code(),
            absl::StatusCode::kFailedPrecondition);
}

// All workers take part in each round, so the lowest last step counts.
TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsOfTheLastStepOfAllWorkers) {
  RunningDriver other(SavingOptions());
  other.MakeCheckpoint(3);
  other.Say(kWorker0, Leave{1'000'000});
  other.Say(kWorker1, Leave{3});
  EXPECT_EQ(other.state(), JobState::kFinished);
}

// A job in which no checkpoint of the last step is due.
struct CoordinatorLastStepTest : testing::Test {
  CoordinatorLastStepTest() {
    driver.MakeCheckpoint(3);
    driver.Say(kWorker0, Leave{4});
    left = driver.Say(kWorker1, Leave{4});
  }
  RunningDriver driver{SavingOptions()};
  Reaction left;
};

TEST_F(CoordinatorLastStepTest, LastStepIsSavedThoughNoCheckpointWasDue) {
  EXPECT_EQ(Heard<SaveLast>(left, kShard1), (SaveLast{1, 4, 0}));
  EXPECT_EQ(Heard<SaveLast>(left, kWorker1), (SaveLast{1, 4, 0}));
  driver.Say(kShard0, PartOf(0, 4, 1));
  driver.Say(kShard1, PartOf(1, 4, 1));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  const Reaction whole = driver.Checkpoint(4, absl::OkStatus());
  EXPECT_EQ(driver.state(), JobState::kFinished);
  EXPECT_EQ(Heard<JobOver>(whole, kWorker0).saved_round, 4);
  EXPECT_THAT(whole.announced,
              Contains(HasSubstr("its parameters are in the checkpoint of "
                                 "round 4")));
}

TEST_F(CoordinatorLastStepTest, MemberThatComesBackIsAskedAgain) {
  driver.Break(kShard1);
  const Reaction back = driver.ResumeIn(50, kShard1);
  EXPECT_EQ(Heard<SaveLast>(back, 50), (SaveLast{1, 4, 0}));
  EXPECT_THAT(HearersOf<SaveLast>(back), testing::ElementsAre(50));
}

TEST_F(CoordinatorLastStepTest, EndSaysThatNothingIsSavedWithoutAFolder) {
  RunningDriver other(OptionsOf(1, 1));
  const Reaction over = other.Say(kWorker0, Leave{4});
  EXPECT_EQ(other.state(), JobState::kFinished);
  EXPECT_EQ(Heard<JobOver>(over, kWorker0).saved_round, kInitialRound);
  EXPECT_THAT(over.announced,
              Contains(HasSubstr("its parameters are not saved: "
                                 "--checkpoint-dir=DIR keeps them")));
}

TEST_F(CoordinatorLastCheckpointTest, NoWorkerJoinsDuringTheLastCheckpoint) {
  ExpectRefusal(driver.Say(50, WorkerRequest("new")), 50,
                absl::StatusCode::kOutOfRange,
                "is finished except for its last checkpoint");
}

}  // namespace
}  // namespace nereus
