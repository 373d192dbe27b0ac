// Tests of a coordinator whose members change, in this order: leases, reports,
// workers that leave, sessions, restarts of the coordinator, links, backups,
// early departures, and bugs that were found. Recovery under random faults is
// left to the laws of the simulator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/epoch_change.h"
#include "tests/server/coordinator_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

TEST(CoordinatorEpochTest, SilentWorkerIsGoneAfterTheLease) {
  RunningDriver driver(OptionsOf(2, 1));
  EXPECT_THAT(driver.Pass(absl::Seconds(10), /*silent=*/{kWorker1}).sent,
              IsEmpty());
  const Reaction gone = driver.Pass(absl::Seconds(0.5), /*silent=*/{kWorker1});
  EXPECT_THAT(
      gone.announced,
      Contains(HasSubstr("worker w1 (at w1:1) was removed: it sent nothing "
                         "for 10.5 s")));
  ExpectRefusal(gone, kWorker1, absl::StatusCode::kCancelled,
                "worker w1 was counted as dead: it sent nothing for");
  EXPECT_THAT(HearersOf<PrepareEpoch>(gone),
              UnorderedElementsAre(kShard0, kWorker0));
  const Reaction on = driver.ReportRest(4);
  EXPECT_THAT(HearersOf<EpochStart>(on),
              UnorderedElementsAre(kShard0, kWorker0));
  EXPECT_THAT(on.sent, SizeIs(2));
  const EpochStart start = Heard<EpochStart>(on, kWorker0);
  EXPECT_EQ(start.self, PeerId::Worker(0));
  EXPECT_EQ(start.job, driver.coordinator().job());
  EXPECT_EQ(start.job->epoch, 2u);
  EXPECT_EQ(start.job->history.first_step, 5);
  EXPECT_EQ(start.job->history.contributions_before, 10);
  EXPECT_THAT(start.job->workers, ElementsAre(EpochWorker{0, 0}));
  EXPECT_THAT(start.explanations, SizeIs(2));
  EXPECT_THAT(SeatsOf(start),
              UnorderedElementsAre(PeerId::Shard(0), PeerId::Worker(0)));
  EXPECT_EQ(driver.Status().epoch, 2u);
}

// JoinRequest and Resume begin a session, and Failure ends the job. These are
// all other messages.
TEST(CoordinatorEpochTest, AnyMessageOfAMemberRenewsItsLease) {
  Measured measured;
  measured.times.assign(2, {absl::Milliseconds(1), absl::Milliseconds(2)});
  measured.step_time = absl::Milliseconds(10);
  measured.link = LinkSpeed{1e9};
  FusionTimed timed;
  timed.step_seconds = 0.01;
  for (const MemberMessage& message : std::vector<MemberMessage>{
           Heartbeat(), LostPeer(), EpochReport(), Leave(), CheckpointPart(),
           timed, ReadyToSwitch(), measured, WantCheckpoint(),
           ReplicaChecksums()}) {
    SCOPED_TRACE(message.index());
    RunningDriver driver(OptionsOf(2, 1));
    driver.Pass(absl::Seconds(9), /*silent=*/{kWorker1});
    driver.Say(kWorker1, message);
    driver.Pass(absl::Seconds(10), /*silent=*/{kWorker1});
    EXPECT_THAT(driver.Status().members, SizeIs(3));
    driver.Pass(absl::Seconds(0.5), /*silent=*/{kWorker1});
    EXPECT_THAT(driver.Status().members, SizeIs(2));
  }
}

TEST(CoordinatorEpochTest, LeaseBeginsWhenTheJobStarts) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(1, ShardRequest(0));
  driver.Pass(absl::Seconds(9));
  driver.Say(2, WorkerRequest("a"));
  EXPECT_THAT(driver.Pass(absl::Seconds(5), /*silent=*/{1, 2}).sent, IsEmpty());
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

TEST(CoordinatorEpochTest,
     WorkerWithoutASessionCountsAsDeadAfterReconnectGrace) {
  RunningDriver driver(OptionsOf(2, 1));
  EXPECT_THAT(driver.Break(kWorker1).sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(1)).sent, IsEmpty());
  const Reaction gone = driver.Pass(absl::Seconds(0.5));
  EXPECT_THAT(gone.announced,
              Contains(AllOf(HasSubstr("worker w1 (at w1:1) was removed"),
                             HasSubstr("session"))));
  EXPECT_THAT(HearersOf<PrepareEpoch>(gone),
              UnorderedElementsAre(kShard0, kWorker0));
  EXPECT_THAT(gone.sent, SizeIs(2));
  driver.ReportRest(4);
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{0, 0}));
}

TEST(CoordinatorEpochTest, MemberThatReportsAndThenDiesIsNotInTheNextEpoch) {
  RunningDriver driver(OptionsOf(3, 1));
  driver.Lose(kWorker1);
  driver.Report(kWorker2, 9);
  driver.Report(kWorker0, 4);
  driver.Lose(kWorker2);
  driver.Report(kShard0, 4);
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{0, 0}));
  EXPECT_EQ(driver.job().history.first_step, 5);
}

TEST(CoordinatorEpochTest, WorkerThatHasLeftDoesNotCountForAWaitingJob) {
  CoordinatorOptions options = OptionsOf(4, 1);
  options.spec.min_workers = 3;
  RunningDriver driver(options);
  driver.Say(kWorker0, Leave{4});
  driver.Lose(kWorker1);
  EXPECT_THAT(driver.Status().waiting,
              HasSubstr("1 more worker (3 needed); members now: shard 0 (s0 at "
                        "s0:1), worker w2 (at w2:1), worker w3 (at w3:1)"));
}

TEST(CoordinatorEpochTest, JobWaitsBelowMinWorkers) {
  CoordinatorOptions options = OptionsOf(3, 1);
  options.spec.min_workers = 3;
  RunningDriver driver(options);
  driver.Lose(kWorker1);
  EXPECT_THAT(driver.ReportRest(4).sent, IsEmpty());
  EXPECT_EQ(driver.job().epoch, 1u);
  EXPECT_THAT(
      driver.Status().waiting,
      HasSubstr(
          "job training waits for 1 more worker (3 needed); members now: "));
  const Reaction told = driver.Pass(absl::Seconds(3));
  EXPECT_THAT(HearersOf<Waiting>(told),
              UnorderedElementsAre(kShard0, kWorker0, kWorker2));
  EXPECT_THAT(told.sent, SizeIs(3));
  EXPECT_THAT(Heard<Waiting>(told, kWorker0).text,
              HasSubstr("waits for 1 more worker (3 needed)"));
  EXPECT_EQ(driver.state(), JobState::kRunning);

  const Reaction on = driver.Say(kNew, WorkerRequest("new"));
  EXPECT_THAT(HearersOf<EpochStart>(on),
              UnorderedElementsAre(kShard0, kWorker0, kWorker2, kNew));
  EXPECT_THAT(
      driver.job().workers,
      ElementsAre(EpochWorker{0, 0}, EpochWorker{2, 0}, EpochWorker{3, 5}));
  EXPECT_EQ(driver.Status().waiting, "");
}

TEST(CoordinatorEpochTest, JoinerHearsForWhichMembersItWaits) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Say(kNew, WorkerRequest("new"));
  driver.Report(kShard0, 4);
  driver.Report(kWorker1, 4);
  const Reaction told = driver.Pass(absl::Seconds(3));
  EXPECT_THAT(HearersOf<Waiting>(told),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1, kNew));
  EXPECT_THAT(
      Heard<Waiting>(told, kNew).text,
      AllOf(HasSubstr(
                "waits for the report of worker w0 (at w0:1); members now: "),
            HasSubstr("worker new (at new:1)")));
  EXPECT_EQ(driver.Status().waiting, Heard<Waiting>(told, kNew).text);
}

// A member of epoch 1 answers PrepareEpoch 2 by a report with target 2 and
// epoch 1.
// The third process gets the rank of the first one, which was in no epoch.
TEST(CoordinatorEpochTest, RanksAscendWhenAJoinerEndsBeforeItsEpoch) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Say(kNew, WorkerRequest("first"));
  driver.Say(kNew + 1, WorkerRequest("second"));
  driver.Lose(kNew);
  driver.Say(kNew + 2, WorkerRequest("third"));
  driver.ReportRest(5);
  EXPECT_EQ(driver.coordinator().reason(), "");
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{1, 0},
                          EpochWorker{2, 6}, EpochWorker{3, 6}));
}

TEST(CoordinatorEpochTest, ReportsOfAnotherTargetOrEpochAreIgnored) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  MachineReport report;
  report.begun_step = 4;
  // No report is asked for yet.
  driver.Say(kWorker0, EpochReport{0, 1, report});
  driver.Say(kWorker0, EpochReport{2, 1, report});
  driver.Lose(kWorker1);
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().epoch, 2u);
  driver.Say(kNew, WorkerRequest("new"));
  driver.Report(kShard0, 4);
  for (const auto& [target, epoch] : std::vector<std::pair<int, int>>{
           {0, 2}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 2}}) {
    EXPECT_THAT(
        driver
            .Say(kWorker0, EpochReport{static_cast<uint64_t>(target),
                                       static_cast<uint64_t>(epoch), report})
            .sent,
        IsEmpty())
        << target << " " << epoch;
    EXPECT_THAT(driver.Status().waiting, HasSubstr("the report of worker w0"));
  }
  driver.Say(kWorker0, EpochReport{3, 2, report});
  EXPECT_EQ(driver.job().epoch, 3u);
}

TEST(CoordinatorEpochTest, LastReportCounts) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Say(kNew, WorkerRequest("new"));
  driver.Report(kWorker1, 4);
  MachineReport report;
  report.begun_step = 7;
  driver.Say(kWorker1, EpochReport{2, 1, report});
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().history.first_step, 8);
}

struct Nonsense {
  const char* name;
  MemberMessage message;
  const char* part;
};

using FactorLayers = std::vector<MachineReport::PeerLayer>;

// Returns the answer of a member of epoch 1 to PrepareEpoch 2.
EpochReport ReportOf(int64_t begun_step, FactorLayers peer_layers = {},
                     std::optional<int64_t> closed_round = std::nullopt) {
  EpochReport report;
  report.target = 2;
  report.epoch = 1;
  report.report.begun_step = begun_step;
  report.report.peer_layers = std::move(peer_layers);
  if (closed_round.has_value()) {
    report.report.closed_rounds[0] = *closed_round;
  }
  return report;
}

EpochReport WithTarget(uint64_t target, EpochReport report) {
  report.target = target;
  return report;
}

class CoordinatorNonsenseTest : public testing::TestWithParam<Nonsense> {};

TEST_P(CoordinatorNonsenseTest, NonsenseCostsItsSenderItsMembership) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Say(kNew, WorkerRequest("new"));
  ExpectRefusal(driver.Say(kWorker1, GetParam().message), kWorker1,
                absl::StatusCode::kCancelled, GetParam().part);
  driver.ReportRest(4);
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{2, 5}));
}

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    All, CoordinatorNonsenseTest,
    testing::Values(
        Nonsense{"Step", ReportOf(-2), "the step -2"},
        Nonsense{"LateStep", ReportOf(kMax), "the step 9223"},
        Nonsense{"FactorRound", ReportOf(4, {{1, 3, 2}, {1, -9, 2}}),
                 "the round -9"},
        Nonsense{"LateFactorRound", ReportOf(4, {{1, kMax, 2}}),
                 "the round 9223"},
        Nonsense{"ClosedRound", ReportOf(4, {}, -2), "the round -2"},
        Nonsense{"LateClosedRound", ReportOf(4, {}, kMax), "the round 9223"},
        // A report with another target is checked too.
        Nonsense{"OtherTarget", WithTarget(1, ReportOf(-2)), "the step -2"},
        Nonsense{"HeartbeatStep", HeartbeatOf(-2, -1), "the step -2"},
        Nonsense{"HeartbeatRound", HeartbeatOf(4, kMax), "the round 9223"},
        Nonsense{"LeaveStep", Leave{-2}, "the last step -2"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CoordinatorLeaveTest, JobIsFinishedWhenAllWorkersHaveLeft) {
  RunningDriver driver(OptionsOf(2, 2));
  EXPECT_THAT(driver.Say(kWorker1, Leave{7}).sent, IsEmpty());
  EXPECT_THAT(driver.Say(kWorker1, Leave{7}).sent, IsEmpty());  // Sent again.
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_TRUE(driver.Status().members[1].left);
  const Reaction over = driver.Say(kWorker0, Leave{7});
  EXPECT_EQ(driver.state(), JobState::kFinished);
  // All members hear it, also the leavers, which wait for the others.
  EXPECT_THAT(over.sent, SizeIs(4));
  EXPECT_THAT(over.ended,
              UnorderedElementsAre(kShard0, kShard1, kWorker0, kWorker1));
  for (const SessionId session : over.ended) {
    EXPECT_EQ(Heard<JobOver>(over, session).state, JobState::kFinished);
    EXPECT_FALSE(driver.coordinator().everyone_knows());
    driver.Break(session);
  }
  EXPECT_TRUE(driver.coordinator().everyone_knows());

  // The job stays finished.
  EXPECT_THAT(driver.Fail("too late").sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(100)).sent, IsEmpty());
  EXPECT_EQ(driver.state(), JobState::kFinished);
  EXPECT_EQ(driver.coordinator().reason(), "");
  EXPECT_EQ(RefusalIn(driver.Say(kNew, WorkerRequest("late")), kNew).code(),
            absl::StatusCode::kOutOfRange);
}

TEST(CoordinatorLeaveTest, LeaverStaysUntilAllWorkersHaveDoneItsLastRound) {
  RunningDriver driver(OptionsOf(3, 1));
  driver.Beat(kWorker0, 7, 7);
  EXPECT_THAT(driver.Say(kWorker0, Leave{7}).sent, IsEmpty());
  EXPECT_THAT(driver.Beat(kWorker1, 7, 6).sent, IsEmpty());
  EXPECT_THAT(driver.Beat(kWorker2, 7, 7).sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());

  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Beat(kWorker2, 8, 7)),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1, kWorker2));
  driver.Report(kShard0, 7);
  driver.Report(kWorker0, 7);
  driver.Report(kWorker1, 7);
  EXPECT_THAT(HearersOf<EpochStart>(driver.Report(kWorker2, 8)),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1, kWorker2));
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{1, 0}, EpochWorker{2, 0}));
  EXPECT_THAT(driver.job().crew.left_workers, ElementsAre(0));

  // Worker 1 may need the leaver's contribution to round 7.
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());
  const Reaction released = driver.Beat(kWorker1, 8, 7);
  EXPECT_EQ(Heard<JobOver>(released, kWorker0).state, JobState::kFinished);
  EXPECT_THAT(released.sent, SizeIs(1));
  EXPECT_THAT(released.ended, ElementsAre(kWorker0));
  EXPECT_THAT(driver.Status().members, SizeIs(3));
  // The end of the leaver's session changes nothing any more.
  driver.Break(kWorker0);
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());
  EXPECT_EQ(driver.job().epoch, 2u);
}

TEST(CoordinatorLeaveTest, LeaverMakesWayForAJoiner) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Beat(kWorker0, 7, 7);
  driver.Beat(kWorker1, 7, 7);
  driver.Say(kWorker0, Leave{7});
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Say(kNew, WorkerRequest("new"))),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  // The other worker leaves too: the joiner starts with a leaver's values.
  EXPECT_THAT(driver.Say(kWorker1, Leave{7}).sent, IsEmpty());
  EXPECT_EQ(driver.state(), JobState::kRunning);
  MachineReport shard;
  shard.closed_rounds[0] = 7;
  driver.Report(kShard0, shard);
  const Reaction on = driver.ReportRest(7);
  EXPECT_THAT(HearersOf<EpochStart>(on),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1, kNew));
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{2, 8}));
  EXPECT_THAT(driver.job().crew.left_workers, ElementsAre(0, 1));
  EXPECT_EQ(driver.job().history.donor, 0);
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
  // The joiner has the values, so the leavers are released.
  EXPECT_THAT(HearersOf<JobOver>(driver.Beat(kNew, 8, 7)),
              UnorderedElementsAre(kWorker0, kWorker1));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.Say(kNew, Leave{8});
  EXPECT_EQ(driver.state(), JobState::kFinished);
}

TEST(CoordinatorLeaveTest, JobIsFinishedIfTheLastWorkerDiesAndTheOthersLeft) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Say(kWorker0, Leave{7});
  driver.Lose(kWorker1);
  EXPECT_EQ(driver.state(), JobState::kFinished);
}

// In partial rounds the other workers may be far from the leaver's last step,
// and never begin a later one. They go on without it at once.
TEST(CoordinatorEpochTest, LeaverNeedNotWaitInPartialRounds) {
  for (const Quorum quorum : {Quorum::kAll, Quorum::kSolo}) {
    CoordinatorOptions options = OptionsOf(2, 1);
    options.spec.options.rounds.quorum = quorum;
    RunningDriver driver(options);
    driver.Beat(kWorker0, 9, 9);
    driver.Beat(kWorker1, 2, 1);
    const Reaction left = driver.Say(kWorker0, Leave{9});
    const bool partial = quorum != Quorum::kAll;
    EXPECT_EQ(HearersOf<PrepareEpoch>(left).empty(), !partial);
    if (!partial) continue;
    driver.Report(kShard0, MachineReport());
    driver.Report(kWorker0, 9);
    driver.Report(kWorker1, 2);
    EXPECT_EQ(driver.job().worker_count(), 1);
    EXPECT_EQ(Heard<JobOver>(driver.Tick(), kWorker0).state,
              JobState::kFinished);
  }
}

// ---- Sessions of members.

// No worker has its first values, so all workers start from the base round; the
// shard does not.
TEST(CoordinatorSessionTest, MissedStartTellsTheMemberToStartFromTheBaseRound) {
  RunningDriver driver(OptionsOf(3, 1));
  driver.Lose(kWorker2);
  MachineReport fetching;
  fetching.fetching = true;
  driver.Report(kWorker1, fetching);
  driver.Break(kWorker1);
  driver.Report(kShard0, -1);
  const Reaction on = driver.Report(kWorker0, fetching);
  EXPECT_TRUE(Heard<EpochStart>(on, kWorker0).from_base);
  EXPECT_FALSE(Heard<EpochStart>(on, kShard0).from_base);
  EXPECT_TRUE(
      Heard<EpochStart>(driver.ResumeIn(kNew, kWorker1), kNew).from_base);
}

TEST(CoordinatorSessionTest, OnlyMembersMayResume) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(kNew - 1, WorkerRequest("early"));
  const uint64_t incarnation = WorkerRequest("early").incarnation;
  EXPECT_EQ(RefusalIn(driver.Say(kNew - 2, Resume{kTestJobId, PeerId::Worker(0),
                                                  incarnation, 1}),
                      kNew - 2)
                .code(),
            absl::StatusCode::kCancelled);
  driver.Break(kNew - 1);
  driver.Gather();
  const Resume good = driver.ResumeOf(kWorker1);
  std::vector<Resume> wrong(4, good);
  wrong[0].job += 1;
  wrong[1].incarnation += 1;
  wrong[2].member = PeerId::Worker(0);
  wrong[3].member = PeerId::Shard(1);
  for (int i = 0; i < 4; ++i) {
    const Reaction refused = driver.Say(kNew + i, wrong[i]);
    const absl::Status why = RefusalIn(refused, kNew + i);
    // A process that counts as dead may join again (kCancelled). A process of
    // another job must not join this job.
    EXPECT_EQ(why.code(), i == 0 ? absl::StatusCode::kDataLoss
                                 : absl::StatusCode::kCancelled)
        << i;
    EXPECT_THAT(
        std::string(why.message()),
        HasSubstr(i == 0 ? "does not know the job" : "was counted as dead"));
    EXPECT_THAT(refused.sent, SizeIs(1));
  }
  // All members are still members, in their old sessions.
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

// A coordinator that was started again without the job's state has begun a new
// job with another id. A member that joined it would train from the beginning.
TEST(CoordinatorSessionTest, MemberOfAnotherJobHearsHowToStartAgain) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  Resume resume{kTestJobId + 1, PeerId::Worker(0),
                WorkerRequest("w0").incarnation, 7};
  const Reaction refused = driver.Say(kNew, resume);
  const absl::Status why = RefusalIn(refused, kNew);
  EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("does not know the job"),
                    HasSubstr("would begin job training anew"),
                    HasSubstr("--state=FILE"), HasSubstr("--restore=latest")));
  // A member of the other job in a newer epoch does not fail this job either.
  EXPECT_EQ(driver.state(), JobState::kWaiting);
  driver.Gather();
  resume.epoch = 2;
  EXPECT_EQ(RefusalIn(driver.Say(kNew + 1, resume), kNew + 1).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

// The coordinator was started again after the end of a job. One member has not
// heard of that end.
TEST(CoordinatorSessionTest, MemberOfAJobThatIsOverHearsItsEnd) {
  CoordinatorOptions options = OptionsOf(2, 1);
  options.past_job = PastJob{kTestJobId + 1, JobState::kFinished, "", 41};
  CoordinatorDriver driver(options);
  const Resume resume{kTestJobId + 1, PeerId::Worker(0),
                      WorkerRequest("w0").incarnation, 7};
  const JobOver over = Heard<JobOver>(driver.Say(kNew, resume), kNew);
  EXPECT_EQ(over.state, JobState::kFinished);
  EXPECT_EQ(over.saved_round, 41);
}

TEST(CoordinatorSessionTest, RefusedShardDoesNotTakeAPlace) {
  RunningDriver driver(DurableOptions(2, 1));
  driver.MakeCheckpoint(3);
  driver.Break(kShard0);
  JoinRequest good = ShardRequest(0);
  good.incarnation = 99;
  good.has_checkpoints = true;
  std::vector<JoinRequest> wrong(5, good);
  wrong[0].protocol_version += 1;
  wrong[1].build = "no build";
  wrong[2].name = "";
  wrong[3].has_checkpoints = false;
  wrong[4].incarnation = 0;
  for (int i = 0; i < 5; ++i) {
    const Reaction refused = driver.Say(kNew + i, wrong[i]);
    EXPECT_FALSE(RefusalIn(refused, kNew + i).ok()) << i;
    EXPECT_THAT(refused.announced, SizeIs(1)) << refused.announced[0];
  }
  EXPECT_THAT(driver.ResumeIn(kNew + 5, kShard0).sent, IsEmpty());
  driver.Break(kNew + 5);
  EXPECT_TRUE(RefusalIn(driver.Say(kNew + 6, good), kNew + 6).ok());
  driver.ReportRest(5);
  EXPECT_EQ(driver.job().history.base_round, 3);
}

// A server that comes in place of a lost shard hears why it is refused.
TEST(CoordinatorSessionTest, ShardThatComesTooLateHearsThatTheJobHasFailed) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Break(kShard0);
  JoinRequest another = ShardRequest(0);
  another.incarnation = 99;
  ExpectRefusal(driver.Say(kNew, another), kNew, absl::StatusCode::kDataLoss,
                "there is no checkpoint to go on from");
}

TEST(CoordinatorSessionTest, PauseThatAMessageEndsCountsOnce) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Pass(absl::Seconds(5));
  driver.StandStill(absl::Minutes(2));
  driver.Beat(kShard0, -1, -1);
  driver.Break(kWorker1);
  // The grace is not longer by the pause, which was over before the session
  // broke.
  driver.Pass(absl::Seconds(1));
  EXPECT_EQ(driver.Status().members.size(), 3u);
  EXPECT_THAT(driver.Pass(absl::Seconds(0.5)).announced,
              ElementsAre(HasSubstr("worker w1 (at w1:1) was removed")));
}

// The member is silent for half a lease before the pause, and for more than
// that after it.
TEST(CoordinatorSessionTest, SilenceBeforeAPauseStillCounts) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Pass(absl::Seconds(5), {kWorker1});
  driver.StandStill(absl::Minutes(2));
  EXPECT_THAT(driver.Pass(absl::Seconds(5), {kWorker1}).announced, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(1), {kWorker1}).announced,
              Contains(HasSubstr("worker w1 (at w1:1) was removed")));
}

// ---- Coordinators that die and are started again with their saved state.

// Two workers and a shard, in epoch 1, with a checkpoint of round 3.
class CoordinatorRestartTest : public testing::Test {
 protected:
  CoordinatorRestartTest() : driver_(DurableOptions(2, 1, /*max_workers=*/3)) {
    Note(driver_.Gather());
    Note(driver_.MakeCheckpoint(3));
  }
  // Keeps the last state that was saved.
  Reaction Note(Reaction reaction) {
    if (!reaction.saved.empty()) saved_ = reaction.saved.back();
    return reaction;
  }
  CoordinatorDriver driver_;
  CoordinatorState saved_;
};

TEST_F(CoordinatorRestartTest, StateHasTheJob) {
  EXPECT_EQ(saved_.state, JobState::kRunning);
  EXPECT_EQ(saved_.epoch.job, driver_.coordinator().job());
  EXPECT_THAT(saved_.epoch.explanations, SizeIs(2));
  ASSERT_THAT(saved_.members, SizeIs(3));
  EXPECT_EQ(saved_.members[0].id, PeerId::Shard(0));
  EXPECT_EQ(saved_.members[2].id, PeerId::Worker(1));
  EXPECT_EQ(saved_.members[2].request.name, "w1");
  EXPECT_THAT(saved_.members[2].request.layers, IsEmpty());
  EXPECT_EQ(saved_.next_rank, 2);
  EXPECT_EQ(saved_.checkpoints.newest->round, 3);
}

TEST_F(CoordinatorRestartTest, MemberThatMissedAnEpochHearsOfItsDeadMembers) {
  driver_.Say(kNew, WorkerRequest("new"));
  Note(driver_.ReportRest(5));
  driver_.Say(kWorker1, HeartbeatOf(INT64_MAX, 0));  // Drops the worker.
  Note(driver_.RequestCheckpoint());
  ASSERT_EQ(saved_.epoch.job->epoch, 2u);
  ASSERT_THAT(saved_.members, SizeIs(3));
  driver_.Restart(saved_);
  Resume resume = driver_.ResumeOf(kWorker0);
  resume.epoch = 1;
  const Reaction back = driver_.Say(kBack, resume);
  EXPECT_THAT(SeatsOf(Heard<EpochStart>(back, kBack)),
              UnorderedElementsAre(PeerId::Shard(0), PeerId::Worker(0),
                                   PeerId::Worker(1), PeerId::Worker(2)));
}

// The shard is dropped, the state is saved with a request for a checkpoint, and
// only then does the coordinator die.
TEST_F(CoordinatorRestartTest, ShardThatWasLostBeforeIsLostStill) {
  driver_.Lose(kShard0);
  Note(driver_.RequestCheckpoint());
  ASSERT_THAT(saved_.members, SizeIs(2));
  driver_.Restart(saved_);
  driver_.ResumeAll({kWorker0, kWorker1});
  driver_.Replace(kNew, 0);
  driver_.ReportRest(7);
  EXPECT_EQ(driver_.job().history.base_round, 3);
}

TEST_F(CoordinatorRestartTest, MembersThatResumeAfterTheEndAreToldOfIt) {
  driver_.Say(kWorker0, Leave{5});
  Note(driver_.Say(kWorker1, Leave{5}));
  Note(driver_.MakeCheckpoint(5));
  ASSERT_EQ(saved_.state, JobState::kFinished);
  driver_.Restart(saved_);
  EXPECT_FALSE(driver_.coordinator().everyone_knows());
  const Reaction back = driver_.ResumeAll({kShard0, kWorker0, kWorker1});
  EXPECT_EQ(Heard<JobOver>(back, kBack + kWorker1).state, JobState::kFinished);
  driver_.Break(kBack + kShard0);
  driver_.Break(kBack + kWorker0);
  driver_.Break(kBack + kWorker1);
  EXPECT_TRUE(driver_.coordinator().everyone_knows());
}

TEST_F(CoordinatorRestartTest, ReasonOfAFailureIsKeptOverARestart) {
  Note(driver_.Fail("the reason"));
  driver_.Restart(saved_);
  const Reaction back = driver_.ResumeAll({kWorker0});
  EXPECT_EQ(Heard<JobOver>(back, kBack + kWorker0).reason, "the reason");
}

TEST_F(CoordinatorRestartTest, CheckpointThatFailedIsNotWantedAnyMore) {
  Note(driver_.RequestCheckpoint());
  Note(driver_.ReportRest(5));
  CheckpointPart failed = PartOf(0, 6, driver_.job().epoch);
  failed.error = "no space";
  Note(driver_.Say(kShard0, failed));
  EXPECT_FALSE(driver_.coordinator().checkpoints().wanted());
  EXPECT_FALSE(saved_.checkpoint_wanted);
}

// Members that heard of the epoch before the restart start from the base round,
// so all others must do so too.
TEST_F(CoordinatorRestartTest, EpochFromTheBaseRoundIsSoForLateMembersToo) {
  driver_.Break(kShard0);
  driver_.Replace(kNew, 0);
  Note(driver_.ReportRest(7));
  ASSERT_EQ(saved_.epoch.job->history.base_round, 3);
  EXPECT_TRUE(saved_.epoch.all_from_base);
  driver_.Restart(saved_);
  Resume resume = driver_.ResumeOf(kWorker0);
  resume.epoch = 1;
  EXPECT_TRUE(Heard<EpochStart>(driver_.Say(kBack, resume), kBack).from_base);
  Resume shard = driver_.ResumeOf(50);
  shard.epoch = 1;
  EXPECT_TRUE(
      Heard<EpochStart>(driver_.Say(kBack + 1, shard), kBack + 1).from_base);
}

TEST_F(CoordinatorRestartTest, MemberOfANewerEpochFailsTheJob) {
  const CoordinatorState old = saved_;
  driver_.Say(kNew, WorkerRequest("new"));
  Note(driver_.ReportRest(5));
  ASSERT_EQ(saved_.epoch.job->epoch, 2u);
  driver_.Restart(old);
  // A member that has missed epoch 2 does not know of it.
  Resume resume = driver_.ResumeOf(kWorker1);
  resume.epoch = 1;
  driver_.Say(kBack + kWorker1, resume);
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  const Reaction back = driver_.ResumeIn(kBack + kWorker0, kWorker0);
  EXPECT_EQ(driver_.state(), JobState::kLost);
  EXPECT_THAT(Heard<JobOver>(back, kBack + kWorker1).reason,
              AllOf(HasSubstr("a state of epoch 1, and a member is in epoch 2"),
                    HasSubstr("the --state file is older than the job"),
                    HasSubstr("with --restore=latest")));
  ASSERT_THAT(back.saved, SizeIs(1));
  EXPECT_EQ(back.saved[0].state, JobState::kLost);
}

// Returns the contributions with which a job begins whose checkpoint was made
// after 31 batches of 14 rows.
int64_t ContributionsWithRows(int64_t rows) {
  CoordinatorOptions options = DurableOptions(1, 1);
  options.start_checkpoint = CheckpointRecord{8, 31, {{"file", 5, 7}}};
  JoinRequest worker = WorkerRequest("w");
  for (LayerSpec& layer : worker.layers) layer.rows = 14;
  options.restored_layers = worker.layers;
  for (LayerSpec& layer : worker.layers) layer.rows = rows;
  CoordinatorDriver driver(options);
  driver.Say(kShard0, ShardRequest(0, /*has_checkpoints=*/true));
  driver.Say(kWorker0, worker);
  EXPECT_EQ(driver.job().history.base_round, 8);
  EXPECT_EQ(driver.job().history.contributions_before,
            driver.Status().checkpoint.contributions);
  return driver.job().history.contributions_before;
}

// Otherwise batches of twice the size would count as twice the examples.
TEST(CoordinatorRestoreTest, JobWithOtherBatchesGoesOnAtTheSameExample) {
  EXPECT_EQ(ContributionsWithRows(14), 31);
  EXPECT_EQ(ContributionsWithRows(7), 62);
  EXPECT_EQ(ContributionsWithRows(28), 15);
}

// Starts a job of a checkpoint whose workers had `before`, with a worker that
// has `now`.
Reaction RestoreWith(std::vector<Setting> before, std::vector<Setting> now) {
  CoordinatorOptions options = DurableOptions(1, 1);
  options.start_checkpoint = CheckpointRecord{8, 31, {{"file", 5, 7}}};
  options.restored_layers = WorkerRequest("w").layers;
  options.restored_settings = std::move(before);
  CoordinatorDriver driver(options);
  driver.Say(kShard0, ShardRequest(0, /*has_checkpoints=*/true));
  JoinRequest worker = WorkerRequest("w");
  worker.settings = std::move(now);
  return driver.Say(kWorker0, worker);
}

TEST(CoordinatorRestoreTest, OtherSettingsThanThoseOfTheCheckpointAreWarnedOf) {
  const Reaction reaction =
      RestoreWith({{"--seed", "1"}, {"--limit", "2000"}, {"--epochs", "3"}},
                  {{"--limit", "4000"}, {"--epochs", "3"}, {"--model", "m"}});
  EXPECT_THAT(
      reaction.announced,
      Contains(
          AllOf(HasSubstr("those that made the checkpoint of round 8: "
                          "--limit is 4000, was 2000; --model is m, was none; "
                          "--seed is none, was 1. If the order"),
                Not(HasSubstr("--epochs")))));
}

TEST(CoordinatorRestoreTest, EqualOrUnknownSettingsAreNoReasonToWarn) {
  const std::vector<Setting> settings = {{"--seed", "1"}, {"--limit", "2000"}};
  for (const auto& before : {settings, std::vector<Setting>()}) {
    EXPECT_THAT(RestoreWith(before, settings).announced,
                Each(Not(HasSubstr("made the checkpoint"))));
  }
}

TEST(CoordinatorRestoreTest, CheckpointHasTheSettingsOfItsWorkers) {
  CoordinatorDriver driver(DurableOptions(1, 1));
  driver.Say(kShard0, ShardRequest(0, /*has_checkpoints=*/true));
  JoinRequest worker = WorkerRequest("w");
  worker.settings = {{"--seed", "1"}};
  driver.Say(kWorker0, worker);
  const Reaction made = driver.Say(kShard0, PartOf(0, 0, 1));
  ASSERT_THAT(made.completed, SizeIs(1));
  EXPECT_THAT(made.completed[0].worker_settings,
              ElementsAre(Setting{"--seed", "1"}));
}

// ---- Links between members.

// The member of `session` reports that it has lost its connection to `peer`, in
// the job's epoch.
Reaction LoseLink(CoordinatorDriver& driver, SessionId session, PeerId peer) {
  return driver.Say(session, LostPeer{driver.job().epoch, peer, "reset"});
}

TEST(CoordinatorLinkTest, LostLinkReportedByBothEndsIsASingleChange) {
  RunningDriver driver(OptionsOf(2, 1));
  const Reaction asked = LoseLink(driver, kWorker0, PeerId::Shard(0));
  EXPECT_THAT(HearersOf<PrepareEpoch>(asked),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  EXPECT_THAT(asked.announced,
              ElementsAre("worker w0 lost its connection to shard 0 (s0 at "
                          "s0:1): reset"));
  EXPECT_THAT(LoseLink(driver, kShard0, PeerId::Worker(0)).sent, IsEmpty());
  const Reaction on = driver.ReportRest(4);
  EXPECT_THAT(on.announced,
              Contains(HasSubstr("the job goes on; worker w0 and shard 0 lost "
                                 "their connection, and make another; ")));
  EXPECT_EQ(driver.job().workers, FirstWorkers(2));
  for (const SessionId session : {kShard0, kWorker0, kWorker1}) {
    EXPECT_THAT(Heard<EpochStart>(on, session).broken_links,
                ElementsAre(Pair(PeerId::Worker(0), PeerId::Shard(0))));
  }
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
  // The next epoch makes only the newly broken link again.
  LoseLink(driver, kWorker1, PeerId::Worker(0));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportRest(4), kWorker0).broken_links,
              ElementsAre(Pair(PeerId::Worker(0), PeerId::Worker(1))));
}

TEST(CoordinatorLinkTest, ReportsAboutUnknownPeersOrTheSenderAreIgnored) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  for (const PeerId peer :
       {PeerId::Worker(0), PeerId::Worker(7), PeerId::Shard(1)}) {
    EXPECT_THAT(LoseLink(driver, kWorker0, peer).sent, IsEmpty());
  }
  // Reports about processes that are not admitted are ignored too.
  driver.Say(kNew, WorkerRequest("new"));
  LoseLink(driver, kWorker0, PeerId::Worker(2));
  LoseLink(driver, kNew, PeerId::Worker(0));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportRest(4), kNew).broken_links,
              IsEmpty());
}

// BrokenLinksTest says which of two members goes, and when.
TEST(CoordinatorLinkTest, ThirdLossWithinAMinutePartsTheMembers) {
  RunningDriver driver(OptionsOf(3, 1));
  for (int loss = 0; loss < 2; ++loss) {
    LoseLink(driver, kWorker1, PeerId::Worker(2));
    LoseLink(driver, kWorker2, PeerId::Worker(1));
    driver.ReportRest(4);
    driver.Pass(absl::Seconds(30));
  }
  EXPECT_THAT(driver.Status().members, SizeIs(4));
  const Reaction gone = LoseLink(driver, kWorker1, PeerId::Worker(2));
  driver.ReportRest(4);
  EXPECT_EQ(RefusalIn(gone, kWorker2).code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(RefusalIn(gone, kWorker2).message()),
              HasSubstr("it and worker w1 cannot keep a connection"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().epoch, 4u);
  EXPECT_EQ(driver.job().worker_count(), 2);
  EXPECT_EQ(driver.job().PositionOf(2), -1);
}

// Each attempt takes a minute until it is reported.
TEST(CoordinatorLinkTest, WorkersThatNeverConnectAreParted) {
  RunningDriver driver(OptionsOf(2, 1));
  Reaction last;
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(driver.job().worker_count(), 2);
    driver.Pass(absl::Minutes(1));
    last = driver.Say(kWorker0, LostPeer{driver.job().epoch, PeerId::Worker(1),
                                         "no route", /*reached=*/false});
    driver.ReportRest(4);
  }
  EXPECT_THAT(last.announced,
              Contains(HasSubstr("was removed: it and worker w0 have never "
                                 "been connected")));
  EXPECT_EQ(driver.job().worker_count(), 1);
}

// Worker w1 has lost its connection to w0, which then left the job.
TEST(CoordinatorLinkTest, LossesToAReleasedWorkerDoNotCount) {
  RunningDriver driver(OptionsOf(3, 1));
  LoseLink(driver, kWorker1, PeerId::Worker(0));
  driver.ReportRest(4);
  driver.Say(kWorker0, Leave{4});
  for (const SessionId session : {kWorker1, kWorker2}) {
    driver.Beat(session, 5, 4);
  }
  driver.ReportRest(5);
  EXPECT_THAT(driver.Tick().ended, ElementsAre(kWorker0));
  for (int repeat = 0; repeat < 3; ++repeat) {
    ASSERT_EQ(driver.job().worker_count(), 2);
    LoseLink(driver, kWorker2, PeerId::Worker(1));
    driver.ReportRest(5);
  }
  EXPECT_EQ(driver.job().PositionOf(2), -1);
  EXPECT_EQ(driver.job().worker_count(), 1);
}

// ---- Servers of a job with backups.

Heartbeat WholeBeat(uint64_t epoch, std::vector<int32_t> whole) {
  Heartbeat heartbeat;
  heartbeat.epoch = epoch;
  heartbeat.current_backups = std::move(whole);
  return heartbeat;
}

// Loses server 0. In epoch 2 the backup of shard 0, server 1, is its primary.
void LoseServer0(CoordinatorDriver& driver) {
  driver.Gather();
  driver.Lose(kShard0);
  driver.ReportRest(5);
  ASSERT_EQ(driver.job().epoch, 2u);
}

// Loses server 0. In epoch 3 another server 0 is the backup of both shards.
void ReplaceServer0(CoordinatorDriver& driver) {
  LoseServer0(driver);
  driver.Replace(kNewShard, 0);
  driver.ReportRest(6);
  ASSERT_EQ(driver.job().epoch, 3u);
}

TEST(CoordinatorBackupTest, EachShardBeginsWithABackup) {
  CoordinatorDriver driver(BackupOptions());
  EXPECT_THAT(driver.Status().shard_servers, IsEmpty());
  driver.Gather();
  EXPECT_EQ(driver.job().shard_servers, FirstShardServers(2, true));
  EXPECT_EQ(driver.Status().shard_servers, FirstShardServers(2, true));
}

TEST(CoordinatorBackupTest, JobWithBackupsNeedsTwoServers) {
  EXPECT_THAT(
      std::string(BackupOptions(1).Validate().message()),
      HasSubstr("--backup=1 needs two servers or more: --servers is 1"));
  EXPECT_TRUE(BackupOptions(2).Validate().ok());
}

TEST(CoordinatorBackupTest, BackupOfALostPrimaryTakesOverAtOnce) {
  RunningDriver driver(BackupOptions());
  const Reaction gone = driver.Lose(kShard0);
  EXPECT_THAT(gone.announced,
              Contains("backups take over all chunks that shard 0 served"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(gone),
              UnorderedElementsAre(kShard1, kWorker0, kWorker1));
  driver.ReportRest(5);
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().epoch, 2u);
  EXPECT_EQ(driver.job().history.base_round, kInitialRound);
  EXPECT_EQ(driver.job().workers, FirstWorkers(2));
  EXPECT_THAT(
      driver.job().shard_servers,
      ElementsAre(ShardServers{1, -1, false}, ShardServers{1, -1, false}));
  // The job waits for no member.
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());
}

TEST(CoordinatorBackupTest, NewServerBecomesTheBackupAndThenThePrimary) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  EXPECT_THAT(
      driver.job().shard_servers,
      ElementsAre(ShardServers{1, 0, false}, ShardServers{1, 0, false}));
  // First one backup becomes current, then both.
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Say(kShard1, WholeBeat(3, {1}))),
              SizeIs(4));
  driver.ReportRest(7);
  EXPECT_THAT(driver.job().shard_servers,
              ElementsAre(ShardServers{1, 0, false}, ShardServers{1, 0, true}));
  driver.Say(kShard1, WholeBeat(4, {0, 1}));
  driver.ReportRest(7);
  EXPECT_EQ(driver.job().shard_servers, FirstShardServers(2, true));
  EXPECT_EQ(driver.job().epoch, 5u);
  driver.Say(kNewShard, WholeBeat(5, {0}));
  driver.Say(kShard1, WholeBeat(5, {1}));
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());
}

TEST(CoordinatorBackupTest, CurrentBackupsOfAnotherEpochAreIgnored) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  for (const uint64_t epoch : {0, 1, 2, 4}) {
    EXPECT_THAT(driver.Say(kShard1, WholeBeat(epoch, {0, 1})).sent, IsEmpty());
  }
  // Heartbeats from the backup, from a worker, and about unknown shards are
  // ignored too.
  EXPECT_THAT(driver.Say(kNewShard, WholeBeat(3, {0, 1})).sent, IsEmpty());
  EXPECT_THAT(driver.Say(kWorker0, WholeBeat(3, {0, 1})).sent, IsEmpty());
  EXPECT_THAT(driver.Say(kShard1, WholeBeat(3, {-1, 2, 1 << 30})).sent,
              IsEmpty());
}

TEST(CoordinatorBackupTest, CurrentBackupIsIgnoredIfTheShardHasNoBackup) {
  CoordinatorDriver driver(BackupOptions());
  LoseServer0(driver);
  EXPECT_THAT(driver.Say(kShard1, WholeBeat(2, {0, 1})).sent, IsEmpty());
}

// The primary reports that its backups are current, and is lost before the
// epoch that records this.
TEST(CoordinatorBackupTest, BackupThatHasJustBecomeCurrentTakesOver) {
  for (const bool reported : {false, true}) {
    CoordinatorDriver driver(BackupOptions());
    ReplaceServer0(driver);
    driver.Say(kShard1, WholeBeat(3, {0, 1}));
    if (reported) driver.Report(kShard1, 7);
    driver.Lose(kShard1);
    ASSERT_EQ(driver.state(), JobState::kRunning);
    driver.ReportRest(7);
    EXPECT_EQ(driver.job().epoch, 4u);
    EXPECT_THAT(
        driver.job().shard_servers,
        ElementsAre(ShardServers{0, -1, false}, ShardServers{0, -1, false}));
  }
}

TEST(CoordinatorBackupTest, ServerThatIsOnlyABackupMayDie) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  const Reaction gone = driver.Lose(kNewShard);
  EXPECT_THAT(gone.announced, Contains(HasSubstr("shard 0")));
  // No backup has to take over.
  EXPECT_THAT(gone.announced, Not(Contains(HasSubstr("take over"))));
  driver.ReportRest(7);
  EXPECT_THAT(
      driver.job().shard_servers,
      ElementsAre(ShardServers{1, -1, false}, ShardServers{1, -1, false}));
}

// ---- Workers that leave early, and servers that ask to leave.

Leave Early(int64_t last_step) {
  return {last_step, /*epoch=*/1, /*early=*/true};
}

TEST(EarlyLeaveTest, JobGoesOnAtOnceWithoutTheWorker) {
  RunningDriver driver(OptionsOf(2, 1));
  const Reaction left = driver.Say(kWorker1, Early(7));
  EXPECT_THAT(left.announced,
              Contains(HasSubstr("worker w1 left early, after step 7")));
  EXPECT_THAT(HearersOf<PrepareEpoch>(left),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  driver.ReportRest(8);
  EXPECT_EQ(driver.job().worker_count(), 1);
  // The other worker has done round 7, and needs nothing more from it.
  EXPECT_THAT(HearersOf<JobOver>(driver.Beat(kWorker0, 8, 7)),
              ElementsAre(kWorker1));
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

TEST(EarlyLeaveTest, JobIsStoppedWhenAllWorkersHaveLeftEarly) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Say(kWorker1, Early(7));
  const Reaction over = driver.Say(kWorker0, Early(7));
  EXPECT_EQ(driver.state(), JobState::kStopped);
  EXPECT_EQ(Heard<JobOver>(over, kShard0).state, JobState::kStopped);
  EXPECT_THAT(driver.coordinator().reason(),
              HasSubstr("was stopped after step 7, as all workers left early; "
                        "its parameters are not saved"));
  EXPECT_EQ(over.saved.back().state, JobState::kStopped);
  const absl::Status late =
      RefusalIn(driver.Say(kNew, WorkerRequest("new")), kNew);
  EXPECT_EQ(late.code(), absl::StatusCode::kDataLoss);
}

TEST(EarlyLeaveTest, JobWithAFolderMakesItsLastCheckpointBeforeItIsStopped) {
  RunningDriver driver(DurableOptions(1, 1));
  const Reaction left = driver.Say(kWorker0, Early(3));
  EXPECT_EQ(Heard<SaveLast>(left, kShard0), (SaveLast{1, 3, 0}));
  driver.Say(kShard0, PartOf(0, 3, 1));
  const Reaction over = driver.Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver.state(), JobState::kStopped);
  EXPECT_EQ(Heard<JobOver>(over, kWorker0).saved_round, 3);
  EXPECT_THAT(driver.coordinator().reason(),
              HasSubstr("in the checkpoint of round 3, and --restore=latest"));
  EXPECT_FALSE(driver.coordinator().lacks_last_checkpoint());
}

// A worker that does not leave early has done all steps of the job.
TEST(EarlyLeaveTest, JobIsFinishedIfNotAllLeftEarly) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Say(kWorker1, Early(7));
  driver.Say(kWorker0, Leave{7});
  EXPECT_EQ(driver.state(), JobState::kFinished);
}

TEST(ServerLeaveTest, ServerIsReleasedWhileItsBackupIsWhole) {
  RunningDriver driver(BackupOptions());
  const Reaction left = driver.Say(kShard0, Early(kInitialRound));
  EXPECT_EQ(Heard<JobOver>(left, kShard0).state, JobState::kFinished);
  EXPECT_THAT(HearersOf<PrepareEpoch>(left),
              UnorderedElementsAre(kShard1, kWorker0, kWorker1));
  EXPECT_THAT(left.ended, ElementsAre(kShard0));
}

// Server 1 has no backup until server 0 has been replaced.
TEST(ServerLeaveTest, LastServerWithTheValuesStays) {
  RunningDriver driver(BackupOptions());
  driver.Say(kShard0, Early(kInitialRound));
  driver.ReportRest(5);
  ASSERT_EQ(driver.job().epoch, 2u);
  const Reaction asked =
      driver.Say(kShard1, Leave{kInitialRound, /*epoch=*/2, /*early=*/true});
  EXPECT_THAT(asked.announced,
              Contains(HasSubstr("shard 1 asks to leave the job")));
  EXPECT_THAT(HearersOf<JobOver>(driver.Pass(absl::Seconds(3))), IsEmpty());
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

TEST(ServerLeaveTest, ServerWithoutABackupStays) {
  RunningDriver driver(OptionsOf(1, 1));
  driver.Say(kShard0, Early(kInitialRound));
  EXPECT_THAT(HearersOf<JobOver>(driver.Pass(absl::Seconds(3))), IsEmpty());
  // At the end of the job it hears of that.
  EXPECT_EQ(Heard<JobOver>(driver.Say(kWorker0, Leave{7}), kShard0).state,
            JobState::kFinished);
}

TEST(ServerLeaveTest, ProcessThatIsNoMemberYetMayNotLeave) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(kShard0, ShardRequest(0));
  const Reaction left = driver.Say(kShard0, Early(kInitialRound));
  EXPECT_THAT(left.announced,
              Contains(HasSubstr("only members of the job may send")));
}

absl::Status Drain(const CoordinatorDriver& driver, const std::string& name,
                   CoordinatorOutbox& out) {
  return driver.coordinator().Drain(name, out);
}

TEST(DrainTest, MemberIsAskedByItsName) {
  RunningDriver driver(BackupOptions());
  for (const auto& [name, session] :
       {std::pair("w1", kWorker1), std::pair("worker w0", kWorker0),
        std::pair("shard 1", kShard1)}) {
    CoordinatorOutbox out;
    EXPECT_TRUE(Drain(driver, name, out).ok()) << name;
    ASSERT_FALSE(out.empty());
    const auto* send = std::get_if<SendToMember>(&out.front());
    ASSERT_NE(send, nullptr);
    EXPECT_EQ(send->session, session);
    EXPECT_TRUE(std::holds_alternative<AskToLeave>(send->message));
  }
}

TEST(DrainTest, WorkerThatHasLeftIsNoLongerThere) {
  RunningDriver driver(OptionsOf(2, 1));
  const Coordinator& coordinator = driver.coordinator();
  EXPECT_TRUE(coordinator.HasMember("w1"));
  EXPECT_TRUE(coordinator.HasMember("worker w1"));
  EXPECT_TRUE(coordinator.HasMember("shard 0"));
  EXPECT_FALSE(coordinator.HasMember("w2"));
  driver.Say(kWorker1, Early(7));
  EXPECT_FALSE(coordinator.HasMember("w1"));
  EXPECT_TRUE(coordinator.HasMember("w0"));
}

TEST(DrainTest, MemberThatCannotLeaveIsNotAsked) {
  CoordinatorOptions options = OptionsOf(2, 2);
  options.own_shard = 0;
  CoordinatorDriver driver(options);
  CoordinatorOutbox out;
  EXPECT_THAT(std::string(Drain(driver, "w0", out).message()),
              HasSubstr("the job is waiting, not running"));
  driver.Gather();
  const absl::Status unknown = Drain(driver, "w7", out);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unknown.message(),
            "the job has no member \"w7\"; its members are shard 0, shard 1, "
            "w0, w1");
  EXPECT_THAT(std::string(Drain(driver, "shard 0", out).message()),
              HasSubstr("is in the process of the coordinator"));
  EXPECT_THAT(std::string(Drain(driver, "shard 1", out).message()),
              HasSubstr("shard 1 has no backup (--backup=1)"));
  driver.Break(kWorker1);
  EXPECT_EQ(Drain(driver, "w1", out).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(out, IsEmpty());
}

// ---- Bugs that reviews and the simulation found, one test for each.

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
  RunningDriver driver(OptionsOf(2, 1));
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
  RunningDriver driver(OptionsOf(2, 1));
  driver.Pass(absl::Seconds(11), {kWorker0});
  EXPECT_THAT(driver.Beat(kWorker0, 7, 7).announced, IsEmpty());
}

TEST(CoordinatorRegressionTest, MemberWithoutASessionHasNotHeardTheEnd) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Break(kWorker1);
  driver.Fail("no reason");
  driver.Break(kWorker0);
  driver.Break(kShard0);
  EXPECT_FALSE(driver.coordinator().everyone_knows());
}

TEST(CoordinatorRegressionTest, StepBeyondTheLimitDoesNotFailTheJob) {
  RunningDriver driver(OptionsOf(2, 1, 3));
  driver.Say(kNew, WorkerRequest("new"));
  driver.Report(kWorker1, int64_t{1} << 62);
  driver.ReportRest(4);
  EXPECT_EQ(driver.state(), JobState::kRunning)
      << driver.coordinator().reason();
}

TEST(CoordinatorRegressionTest, TooManyContributorsDoNotFailTheJob) {
  CoordinatorOptions options = OptionsOf(2, 1, 3);
  options.spec.rules.forced = Scheme::kFactor;
  RunningDriver driver(options);
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
  RunningDriver driver(OptionsOf(1, 1));
  driver.Break(kWorker0);
  const Reaction r = driver.Say(kNew, WorkerRequest("w0"));
  EXPECT_EQ(Heard<EpochStart>(r, kNew).self, PeerId::Worker(0));
}

// The incarnation of a member was once enough to be told all that the member is
// told, and to speak in its name.
TEST(CoordinatorRegressionTest,
     AnotherProcessWithItsIncarnationIsNotTheMember) {
  RunningDriver driver(OptionsOf(1, 1));
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
  RunningDriver driver(OptionsOf(2, 1));
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
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
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
  RunningDriver driver(OptionsOf(1, 1));
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
  RunningDriver driver(DurableOptions(/*workers=*/2, /*shards=*/1));
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
  RunningDriver driver(DurableOptions(/*workers=*/2, /*shards=*/1));
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
  RunningDriver driver(OptionsOf(/*workers=*/3, /*shards=*/1));
  driver.Lose(kWorker1);
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
  RunningDriver driver(OptionsOf(/*workers=*/3, /*shards=*/1));
  driver.Lose(kWorker2);
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
