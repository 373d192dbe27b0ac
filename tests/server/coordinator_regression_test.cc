// Tests for bugs that reviews and the simulation found in the coordinator, one
// test for each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/epoch_change.h"
#include "tests/server/coordinator_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

// Worker 0 leaves after step 7. Worker 1 goes on, and has done `round`.
void LeaveBehind(CoordinatorDriver& driver, int64_t round) {
  driver.Gather();
  driver.Beat(kWorker0, 7, 7);
  driver.Say(kWorker0, Leave{7});
  driver.Beat(kWorker1, 8, round);
  driver.Report(kShard0, 7);
  driver.Report(kWorker0, 7);
  driver.Report(kWorker1, 8);
}

TEST(CoordinatorRegressionTest,
     WorkerReleasedWithoutASessionHearsOfItWhenItResumes) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  LeaveBehind(driver, 6);
  driver.Break(kWorker0);
  driver.Beat(kWorker1, 8, 7);
  const Reaction r = driver.ResumeIn(kNew, kWorker0);
  EXPECT_EQ(RefusalIn(r, kNew).code(), absl::StatusCode::kOk);
  EXPECT_THAT(HearersOf<JobOver>(r), ElementsAre(kNew));
}

TEST(CoordinatorRegressionTest, WorkerThatMissedItsReleaseIsToldAgain) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  LeaveBehind(driver, 6);
  driver.Beat(kWorker1, 8, 7);
  driver.Break(kWorker0);
  const Reaction r = driver.ResumeIn(kNew, kWorker0);
  EXPECT_EQ(RefusalIn(r, kNew).code(), absl::StatusCode::kOk);
  EXPECT_THAT(HearersOf<JobOver>(r), ElementsAre(kNew));
}

TEST(CoordinatorRegressionTest, LeaverHearsTheEndOfTheJobOnce) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  LeaveBehind(driver, 6);
  const Reaction r = driver.Say(kWorker1, Leave{8});
  EXPECT_THAT(HearersOf<JobOver>(r),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  driver.Break(kWorker0);
  EXPECT_TRUE(RefusalIn(driver.ResumeIn(kNew, kWorker0), kNew).ok());
}

TEST(CoordinatorRegressionTest, SilentMemberIsSentNothingAfterTheEnd) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Pass(absl::Seconds(11), {kShard0, kWorker0});
}

TEST(CoordinatorRegressionTest, HeartbeatThatCrossesAReleaseIsIgnored) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  LeaveBehind(driver, 6);
  driver.Beat(kWorker1, 8, 7);
  const Reaction r = driver.Beat(kWorker0, 7, 7);
  EXPECT_THAT(r.announced, IsEmpty());
}

TEST(CoordinatorRegressionTest, HeartbeatThatCrossesADeathIsIgnored) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Pass(absl::Seconds(11), {kWorker0});
  EXPECT_THAT(driver.Beat(kWorker0, 7, 7).announced, IsEmpty());
}

TEST(CoordinatorRegressionTest, MemberWithoutASessionHasNotHeardTheEnd) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Fail("no reason");
  driver.Break(kWorker0);
  driver.Break(kShard0);
  EXPECT_FALSE(driver.coordinator().everyone_knows());
}

TEST(CoordinatorRegressionTest, StepBeyondTheLimitDoesNotFailTheJob) {
  CoordinatorDriver driver(OptionsOf(2, 1, 3));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  driver.Report(kWorker1, int64_t{1} << 62);
  driver.ReportRest(4);
  EXPECT_EQ(driver.state(), JobState::kRunning)
      << driver.coordinator().reason();
}

TEST(CoordinatorRegressionTest, TooManyContributorsDoNotFailTheJob) {
  CoordinatorOptions options = OptionsOf(2, 1, 3);
  options.spec.rules.forced = Scheme::kFactor;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  MachineReport report;
  report.begun_step = 4;
  report.peer_layers = {{1, 4, 70000}};
  driver.Report(kWorker1, report);
  report.peer_layers = {{1, 3, 2}};
  driver.Report(kWorker0, report);
  driver.ReportRest(4);
  EXPECT_EQ(driver.state(), JobState::kRunning)
      << driver.coordinator().reason();
}

TEST(CoordinatorRegressionTest, ProcessThatJoinsAgainAfterTheEndIsAnswered) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, WorkerRequest("a"));
  driver.Fail("no reason");
  const Reaction r = driver.Say(2, WorkerRequest("a"));
  EXPECT_THAT(r.sent, SizeIs(1));
}

TEST(CoordinatorRegressionTest, JoiningInVainUsesUpNoRanks) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  for (int i = 0; i < 65536; ++i) {
    driver.Say(1000 + i, WorkerRequest("a"));
    driver.Break(1000 + i);
  }
  EXPECT_TRUE(RefusalIn(driver.Say(kNew, WorkerRequest("a")), kNew).ok());
}

// The session of a joiner breaks as the process is admitted. The process joins
// again with the same incarnation, and its new session counts.
TEST(CoordinatorRegressionTest, MemberThatMissedItsAdmissionIsToldAgain) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Gather();
  driver.Break(kWorker0);
  const Reaction r = driver.Say(kNew, WorkerRequest("w0"));
  EXPECT_EQ(Heard<EpochStart>(r, kNew).self, PeerId::Worker(0));
}

// The incarnation of a member was once enough to be told all that the member is
// told, and to speak in its name.
TEST(CoordinatorRegressionTest,
     AnotherProcessWithItsIncarnationIsNotTheMember) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Gather();
  std::vector<JoinRequest> others(5, WorkerRequest("w0"));
  others[0].name = "w1";
  others[1].data_address = "w9:1";
  others[2].job = "another";
  others[3].role = Role::kShard;
  others[4].shard = 1;
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    const Reaction r = driver.Say(kNew + i, others[i]);
    EXPECT_EQ(RefusalIn(r, kNew + i).code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(HearersOf<EpochStart>(r), IsEmpty());
  }
  // The member keeps its session.
  driver.Beat(kWorker0, 3, 2);
  EXPECT_EQ(driver.coordinator().epochs().BegunStep(), 3);
}

// A process that had joined and then lost its power kept its place until TCP
// gave up, after some 15 minutes.
TEST(CoordinatorRegressionTest, SilentProcessIsMissedBeforeTheJobBegins) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(kShard0, ShardRequest(0));
  driver.Say(kWorker0, WorkerRequest("w0"));
  Reaction r;
  for (int i = 0; i < 24 && r.announced.empty(); ++i) {
    driver.Beat(kShard0, kInitialRound, kInitialRound);
    r = driver.Pass(absl::Seconds(0.5));
  }
  EXPECT_THAT(r.announced,
              Contains(HasSubstr("worker w0 (at w0:1) was removed: "
                                 "it sent nothing for")));
  EXPECT_EQ(RefusalIn(r, kWorker0).code(), absl::StatusCode::kCancelled);
  driver.Say(kWorker1, WorkerRequest("w1"));
  driver.Say(kWorker2, WorkerRequest("w2"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

// A leaver that came back later than a lease was told that it counts as dead,
// and would have joined again.
TEST(CoordinatorRegressionTest, LeaverHearsHoursLaterThatItHasLeft) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const Resume resume = driver.ResumeOf(kWorker1);
  driver.Beat(kWorker1, 7, 7);
  driver.Say(kWorker1, Leave{7});
  driver.Beat(kWorker0, 8, 6);
  driver.Report(kShard0, 7);
  driver.Report(kWorker1, 7);
  driver.Report(kWorker0, 8);
  driver.Break(kWorker1);
  driver.Beat(kWorker0, 8, 7);  // No other worker needs the leaver any more.
  driver.Pass(absl::Hours(1));
  EXPECT_EQ(Heard<JobOver>(driver.Say(kNew, resume), kNew).state,
            JobState::kFinished);
}

// A member that resumed was once told the members of that moment instead of
// those at the start of the epoch. It refused that list, over and over, while
// all others waited for its report.
TEST(CoordinatorRegressionTest,
     MemberThatMissedAnEpochIsToldTheMembersAtItsStart) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  const Reaction begun = driver.ReportRest(5);
  Resume resume = driver.ResumeOf(kWorker0);
  resume.epoch = 1;
  driver.Break(kWorker0);
  driver.Say(kWorker1, HeartbeatOf(INT64_MAX, 0));  // Drops the worker.
  driver.Say(kNew + 1, WorkerRequest("newer"));
  const Reaction r = driver.Say(kNew + 2, resume);
  EXPECT_EQ(SeatsOf(Heard<EpochStart>(r, kNew + 2)),
            SeatsOf(Heard<EpochStart>(begun, kNew)));
}

TEST(CoordinatorRegressionTest, NonsenseAfterTheEndIsIgnored) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Gather();
  driver.Say(kWorker0, Leave{7});
  driver.Say(kShard0, HeartbeatOf(-9, -1));
}

TEST(CoordinatorRegressionTest, SessionThatJoinsTwiceIsNoMember) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(1, WorkerRequest("a"));
  driver.Say(1, WorkerRequest("b"));
  driver.Say(2, ShardRequest(0));
}

TEST(CoordinatorRegressionTest, LeaverNeedsNoRoundAfterItsLastStep) {
  const JobPtr job = EpochAfter(
      *TestJob(2, 2,
               {FactorLayer("fc1", 4, 3, true, 2), VectorLayer("scale", 7)}, {},
               Scheme::kFactor),
      [](Job& late) {
        late.workers = {{1, 0}, {2, 9}};
        late.crew.left_workers = {0};
        late.history.first_step = 9;
      });
  EpochChange change;
  EpochChange::Worker leaver;
  leaver.rank = 0;
  leaver.leaves = true;
  leaver.report.begun_step = 7;
  leaver.report.peer_layers = {{0, 7, 2}};
  EpochChange::Worker given;
  given.rank = 2;
  given.report.begun_step = 8;
  given.report.peer_layers = {{0, 8, 0}};
  change.workers = {leaver, given};
  for (const int32_t rank : {0, 1}) {
    MachineReport report;
    report.closed_rounds[rank] = 8;
    change.servers.push_back({rank, false, report});
  }
  const auto next = MakeNextEpoch(*job, 7, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->workers_from_base, IsEmpty());
}

// The planned checkpoint has parameters from before the second request.
TEST(CoordinatorRegressionTest,
     RequestAfterThePlannedRoundHasBegunIsForAnother) {
  CoordinatorOptions options = OptionsOf(/*workers=*/2, /*shards=*/1);
  options.has_checkpoints = true;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.RequestCheckpoint();
  driver.ReportRest(6);
  ASSERT_EQ(driver.job().checkpoint_round, 7);
  driver.Say(kWorker0, HeartbeatOf(/*begun_step=*/8, /*round=*/7));
  EXPECT_THAT(driver.RequestCheckpoint().sent, IsEmpty());
  driver.MakeCheckpoint(7);
  EXPECT_TRUE(driver.Status().checkpoint.wanted);
  driver.ReportRest(8);
  EXPECT_EQ(driver.job().checkpoint_round, 9);
  driver.MakeCheckpoint(9);
  EXPECT_FALSE(driver.Status().checkpoint.wanted);
}

// The request comes before the heartbeat that would say how far the worker is.
TEST(CoordinatorRegressionTest, RequestSaysItselfThatThePlannedRoundHasBegun) {
  CoordinatorOptions options = OptionsOf(/*workers=*/2, /*shards=*/1);
  options.has_checkpoints = true;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.Say(kWorker0, WantCheckpoint{/*begun_step=*/6});
  driver.ReportRest(6);
  ASSERT_EQ(driver.job().checkpoint_round, 7);
  driver.Say(kWorker0, WantCheckpoint{/*begun_step=*/6});
  driver.Say(kWorker0, WantCheckpoint{/*begun_step=*/8});
  driver.MakeCheckpoint(7);
  EXPECT_TRUE(driver.Status().checkpoint.wanted);
  driver.ReportRest(8);
  EXPECT_EQ(driver.job().checkpoint_round, 9);
}

// The worker reports for the next epoch, and its driver stands still from then
// on. The epoch begins 8 s later (seed 18729).
TEST(CoordinatorRegressionTest, EpochGivesSilentMemberNoSecondLease) {
  CoordinatorDriver driver(OptionsOf(/*workers=*/3, /*shards=*/1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.Report(kShard0, MachineReport());
  driver.Report(kWorker2, 4);
  driver.Pass(absl::Seconds(8), /*silent=*/{kWorker2});
  ASSERT_THAT(HearersOf<EpochStart>(driver.Report(kWorker0, 4)),
              UnorderedElementsAre(kShard0, kWorker0, kWorker2));
  const Reaction gone = driver.Pass(absl::Seconds(3), /*silent=*/{kWorker2});
  EXPECT_EQ(RefusalIn(gone, kWorker2).code(), absl::StatusCode::kCancelled);
}

// The worker sends a Leave before it hears of an epoch in which it starts from
// the base round. It leaves again when it is done (seed 8906).
TEST(CoordinatorRegressionTest, LeaveFromBeforeAStartFromTheBaseIsUndone) {
  CoordinatorDriver driver(OptionsOf(/*workers=*/3, /*shards=*/1));
  driver.Gather();
  driver.Break(kWorker2);
  driver.Pass(absl::Seconds(1.5));
  MachineReport fetching;
  fetching.fetching = true;
  driver.Report(kWorker1, fetching);
  driver.Report(kShard0, MachineReport());
  const Reaction on = driver.Report(kWorker0, fetching);
  ASSERT_TRUE(Heard<EpochStart>(on, kWorker1).from_base);
  EXPECT_THAT(driver.Say(kWorker1, Leave{kInitialRound, /*epoch=*/1}).announced,
              IsEmpty());
  EXPECT_THAT(driver.Say(kWorker1, Leave{4, /*epoch=*/2}).announced,
              Contains(HasSubstr("left after its last step")));
}

}  // namespace
}  // namespace nereus
