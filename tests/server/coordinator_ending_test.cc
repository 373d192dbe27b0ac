// Tests of a job from which all workers have left, while its last checkpoint is
// written.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

CoordinatorOptions DurableOptions() {
  CoordinatorOptions options = OptionsOf(/*workers=*/2, /*shards=*/2);
  options.has_checkpoints = true;
  options.spec.options.checkpoint_every = 2;
  return options;
}

// A job that saves every second step. Both workers have left after step 3.
// Shard 0 has written its part of the last checkpoint, shard 1 has not.
struct CoordinatorLastCheckpointTest : testing::Test {
  CoordinatorLastCheckpointTest() {
    driver.emplace(DurableOptions());
    driver->Gather();
    driver->Say(kShard0, PartOf(0, 3, 1));
    driver->Say(kWorker0, Leave{3});
    left = driver->Say(kWorker1, Leave{3});
  }
  std::optional<CoordinatorDriver> driver;
  Reaction left;
};

TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsCompleteBeforeTheJobIsFinished) {
  EXPECT_THAT(HearersOf<SaveLast>(left),
              UnorderedElementsAre(kShard0, kShard1, kWorker0, kWorker1));
  EXPECT_EQ(Heard<SaveLast>(left, kShard0), (SaveLast{1, 3, 0}));
  EXPECT_EQ(driver->state(), JobState::kRunning);
  const Reaction waiting = driver->Pass(absl::Seconds(5));
  EXPECT_THAT(HearersOf<Waiting>(waiting),
              testing::IsSupersetOf({kWorker0, kWorker1}));
  EXPECT_THAT(driver->Status().waiting,
              HasSubstr("finished except for its last checkpoint, of round 3"));
  driver->Say(kShard1, PartOf(1, 3, 1));
  EXPECT_EQ(driver->state(), JobState::kRunning);
  const Reaction whole = driver->Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver->state(), JobState::kFinished);
  EXPECT_THAT(HearersOf<JobOver>(whole),
              UnorderedElementsAre(kShard0, kShard1, kWorker0, kWorker1));
  EXPECT_EQ(whole.saved.back().checkpoints.newest->round, 3);
  EXPECT_FALSE(driver->coordinator().lacks_last_checkpoint());
}

TEST_F(CoordinatorLastCheckpointTest, FailedLastCheckpointIsNotAwaited) {
  CheckpointPart failed = PartOf(1, 3, 1);
  failed.error = "disk is full";
  driver->Say(kShard1, failed);
  EXPECT_EQ(driver->state(), JobState::kFinished);
  EXPECT_EQ(driver->Status().checkpoint.failure,
            "shard 1 (s1 at s1:1) could not write its part: disk is full");
  EXPECT_TRUE(driver->coordinator().lacks_last_checkpoint());
}

TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsNotAwaitedWithoutTheShard) {
  driver->Break(kShard1);
  EXPECT_EQ(driver->state(), JobState::kRunning);
  driver->Pass(absl::Seconds(2));
  EXPECT_EQ(driver->state(), JobState::kFinished);
}

// The job goes back to the checkpoint of round 1, where the workers begin anew.
TEST(CoordinatorEndTest, JobGoesBackWhenAShardIsLostAtItsEnd) {
  CoordinatorDriver driver(DurableOptions());
  driver.Gather();
  driver.MakeCheckpoint(1);
  driver.Say(kWorker0, Leave{3});
  driver.Say(kWorker1, Leave{3});
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(2));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_THAT(driver.Status().waiting,
              HasSubstr("waits for the place of a lost server to be taken"));
  JoinRequest another = ShardRequest(1);
  another.incarnation = 99;
  another.has_checkpoints = true;
  driver.Say(50, another);
  const Reaction on = driver.ReportRest(3);
  EXPECT_TRUE(Heard<EpochStart>(on, kWorker0).from_base);
  EXPECT_EQ(driver.job().history.base_round, 1);
  EXPECT_FALSE(driver.Status().members[0].left);
}

TEST(CoordinatorEndTest, BackupsTakeOverWhenAServerIsLostAtTheEnd) {
  CoordinatorOptions options = DurableOptions();
  options.spec.options.backup = true;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.Say(kWorker0, Leave{3});
  driver.Say(kWorker1, Leave{3});
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(2));
  MachineReport report;
  report.closed_rounds = {{0, 3}, {1, 3}};
  driver.Report(kShard0, report);
  const Reaction on = driver.ReportRest(3);
  EXPECT_EQ(driver.job().epoch, 2u);
  EXPECT_FALSE(Heard<EpochStart>(on, kWorker0).from_base);
  EXPECT_TRUE(driver.Status().members[0].left);
  EXPECT_EQ(Heard<SaveLast>(driver.Tick(), kShard0), (SaveLast{2, 3, 0}));
}

TEST_F(CoordinatorLastCheckpointTest, ManifestUnderWayNeedsNoMember) {
  driver->Say(kShard1, PartOf(1, 3, 1));
  for (const SessionId session : {kShard0, kShard1, kWorker0, kWorker1}) {
    driver->Break(session);
  }
  driver->Pass(absl::Seconds(5));
  EXPECT_EQ(driver->state(), JobState::kRunning);
  driver->Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver->state(), JobState::kFinished);
}

TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsAwaitedForHalfAnHourAtMost) {
  driver->Pass(absl::Minutes(29));
  EXPECT_EQ(driver->state(), JobState::kRunning);
  const Reaction over = driver->Pass(absl::Minutes(2));
  EXPECT_EQ(driver->state(), JobState::kFinished);
  EXPECT_THAT(over.announced,
              Contains(HasSubstr("no checkpoint of round 3: its parts did not "
                                 "arrive in time")));
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

// The shards may have got all frames of the workers before.
TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointMayComeAfterTheWorkersAreGone) {
  driver->Break(kWorker0);
  driver->Break(kWorker1);
  driver->Pass(absl::Seconds(5));
  EXPECT_EQ(driver->state(), JobState::kRunning);
  driver->Say(kShard1, PartOf(1, 3, 1));
  driver->Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver->state(), JobState::kFinished);
}

// Worker 1 sends the worker-owned layers in place of worker 0.
TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointMayTakeLongAfterAWorkerIsGone) {
  const Reaction asked = [&] {
    driver->Break(kWorker0);
    return driver->Pass(absl::Seconds(2));
  }();
  EXPECT_EQ(Heard<SaveLast>(asked, kShard1), (SaveLast{1, 3, 1}));
  driver->Pass(absl::Minutes(5));
  ASSERT_EQ(driver->state(), JobState::kRunning);
  driver->Say(kShard1, PartOf(1, 3, 1));
  driver->Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver->state(), JobState::kFinished);
  EXPECT_FALSE(driver->coordinator().lacks_last_checkpoint());
}

TEST_F(CoordinatorLastCheckpointTest, WorkerThatCameBackMustHearTheEnd) {
  driver->Break(kWorker0);
  driver->Pass(absl::Seconds(5));
  driver->ResumeIn(60, kWorker0);
  driver->Break(60);
  driver->Say(kShard1, PartOf(1, 3, 1));
  driver->Checkpoint(3, absl::OkStatus());
  ASSERT_EQ(driver->state(), JobState::kFinished);
  for (const SessionId session : {kShard0, kShard1, kWorker1}) {
    driver->Break(session);
  }
  // The worker has not heard the end, and may resume to hear it.
  EXPECT_FALSE(driver->coordinator().everyone_knows());
}

TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsNotAwaitedForLongWithoutWorkers) {
  driver->Break(kWorker0);
  driver->Break(kWorker1);
  driver->Pass(absl::Minutes(1));
  EXPECT_EQ(driver->state(), JobState::kFinished);
}

TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsNotAwaitedForLongAfterALostConnection) {
  driver->Say(kWorker0, LostPeer{1, PeerId::Shard(1), "reset"});
  EXPECT_EQ(driver->state(), JobState::kRunning);
  driver->Pass(absl::Minutes(1));
  EXPECT_EQ(driver->state(), JobState::kFinished);
}

TEST_F(CoordinatorLastCheckpointTest,
       RestartedCoordinatorAwaitsTheLastCheckpoint) {
  driver->Restart(left.saved.back());
  for (const SessionId old : {kShard0, kShard1, kWorker0, kWorker1}) {
    driver->ResumeIn(old + 100, old);
  }
  driver->Say(kShard0 + 100, PartOf(0, 3, 1));
  EXPECT_EQ(driver->state(), JobState::kRunning);
  driver->Say(kShard1 + 100, PartOf(1, 3, 1));
  driver->Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver->state(), JobState::kFinished);
}

TEST_F(CoordinatorLastCheckpointTest, RequestDuringTheLastCheckpointIsRefused) {
  EXPECT_EQ(driver->TryRequestCheckpoint().code(),
            absl::StatusCode::kFailedPrecondition);
}

// All workers take part in each round, so the lowest last step counts.
TEST_F(CoordinatorLastCheckpointTest,
       LastCheckpointIsOfTheLastStepOfAllWorkers) {
  CoordinatorDriver other(DurableOptions());
  other.Gather();
  other.MakeCheckpoint(3);
  other.Say(kWorker0, Leave{1'000'000});
  other.Say(kWorker1, Leave{3});
  EXPECT_EQ(other.state(), JobState::kFinished);
}

// A job in which no checkpoint of the last step is due.
struct CoordinatorLastStepTest : testing::Test {
  CoordinatorLastStepTest() : driver(DurableOptions()) {
    driver.Gather();
    driver.MakeCheckpoint(3);
    driver.Say(kWorker0, Leave{4});
    left = driver.Say(kWorker1, Leave{4});
  }
  CoordinatorDriver driver;
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

TEST_F(CoordinatorLastStepTest, AnotherWorkerSendsTheLastStepIfTheFirstIsGone) {
  driver.Break(kWorker0);
  const Reaction gone = driver.Pass(absl::Seconds(2));
  EXPECT_EQ(Heard<SaveLast>(gone, kShard0), (SaveLast{1, 4, 1}));
}

TEST_F(CoordinatorLastStepTest, MemberThatComesBackIsAskedAgain) {
  driver.Break(kShard1);
  const Reaction back = driver.ResumeIn(50, kShard1);
  EXPECT_EQ(Heard<SaveLast>(back, 50), (SaveLast{1, 4, 0}));
  EXPECT_THAT(HearersOf<SaveLast>(back), testing::ElementsAre(50));
}

TEST_F(CoordinatorLastStepTest, EndSaysThatNothingIsSavedWithoutAFolder) {
  CoordinatorDriver other(OptionsOf(1, 1));
  other.Gather();
  const Reaction over = other.Say(kWorker0, Leave{4});
  EXPECT_EQ(other.state(), JobState::kFinished);
  EXPECT_EQ(Heard<JobOver>(over, kWorker0).saved_round, kInitialRound);
  EXPECT_THAT(over.announced,
              Contains(HasSubstr("its parameters are not saved: "
                                 "--checkpoint-dir=DIR keeps them")));
}

TEST_F(CoordinatorLastCheckpointTest, NoWorkerJoinsDuringTheLastCheckpoint) {
  const absl::Status refusal =
      RefusalIn(driver->Say(50, WorkerRequest("new")), 50);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(refusal.message(),
              HasSubstr("is finished except for its last checkpoint"));
}

}  // namespace
}  // namespace nereus
