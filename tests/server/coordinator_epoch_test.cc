#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

TEST(CoordinatorEpochTest, SilentWorkerIsGoneAfterTheLease) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  EXPECT_THAT(driver.Pass(absl::Seconds(10), /*silent=*/{kWorker1}).sent,
              IsEmpty());
  const Reaction gone = driver.Pass(absl::Seconds(0.5), /*silent=*/{kWorker1});
  EXPECT_THAT(
      gone.announced,
      Contains(HasSubstr("worker w1 (at w1:1) was removed: it sent nothing "
                         "for 10.5 s")));
  const absl::Status why = RefusalIn(gone, kWorker1);
  EXPECT_EQ(why.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("worker w1 was counted as dead: it sent nothing for"));
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
    CoordinatorDriver driver(OptionsOf(2, 1));
    driver.Gather();
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
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
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

TEST(CoordinatorEpochTest, DeathOfAServerFailsAJobWithoutCheckpoints) {
  for (const bool session_ends : {false, true}) {
    CoordinatorDriver driver(OptionsOf(2, 2));
    driver.Gather();
    if (session_ends) driver.Break(kShard1);
    const Reaction failed =
        driver.Pass(absl::Seconds(10.5), /*silent=*/{kShard1});
    EXPECT_EQ(driver.state(), JobState::kLost);
    EXPECT_THAT(driver.coordinator().reason(),
                HasSubstr("shard 1 (s1 at s1:1) was removed: "));
    EXPECT_THAT(HearersOf<JobOver>(failed),
                UnorderedElementsAre(kShard0, kWorker0, kWorker1));
    EXPECT_EQ(Heard<JobOver>(failed, kWorker0).state, JobState::kLost);
    EXPECT_EQ(Heard<JobOver>(failed, kWorker0).reason,
              driver.coordinator().reason());
    EXPECT_THAT(failed.ended, IsSupersetOf({kShard0, kWorker0, kWorker1}));
    EXPECT_EQ(RefusalIn(failed, kShard1).ok(), session_ends);
  }
}

TEST(CoordinatorEpochTest, DeathOfAServerDuringAnEpochChangeFailsTheJob) {
  CoordinatorDriver driver(OptionsOf(2, 2));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.Report(kShard0, 4);
  driver.Break(kShard1);
  driver.Report(kWorker0, 4);
  EXPECT_THAT(HearersOf<JobOver>(driver.Pass(absl::Seconds(1.5))),
              UnorderedElementsAre(kShard0, kWorker0));
}

// The coordinator does not ask the other members again.
TEST(CoordinatorEpochTest, MemberThatDiesInAnEpochChangeNeedNotReport) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.Break(kWorker2);
  EXPECT_THAT(driver.ReportRest(4).sent, IsEmpty());
  const Reaction gone = driver.Pass(absl::Seconds(1.5));
  EXPECT_THAT(HearersOf<EpochStart>(gone),
              UnorderedElementsAre(kShard0, kWorker0));
  EXPECT_THAT(gone.sent, SizeIs(2));
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{0, 0}));
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorEpochTest, MemberThatReportsAndThenDiesIsNotInTheNextEpoch) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.Report(kWorker2, 9);
  driver.Report(kWorker0, 4);
  driver.Break(kWorker2);
  driver.Pass(absl::Seconds(1.5));
  driver.Report(kShard0, 4);
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{0, 0}));
  EXPECT_EQ(driver.job().history.first_step, 5);
}

TEST(CoordinatorEpochTest, MemberThatIsFoundDeadLateIsInOneMoreEpoch) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.Report(kWorker2, 4);
  driver.Break(kWorker2);
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().epoch, 2u);
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{2, 0}));
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Pass(absl::Seconds(1.5))),
              UnorderedElementsAre(kShard0, kWorker0));
  driver.ReportRest(5);
  EXPECT_EQ(driver.job().epoch, 3u);
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{0, 0}));
}

TEST(CoordinatorEpochTest, WorkerThatHasLeftDoesNotCountForAWaitingJob) {
  CoordinatorOptions options = OptionsOf(4, 1);
  options.spec.min_workers = 3;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.Say(kWorker0, Leave{4});
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_THAT(driver.Status().waiting,
              HasSubstr("1 more worker (3 needed); members now: shard 0 (s0 at "
                        "s0:1), worker w2 (at w2:1), worker w3 (at w3:1)"));
}

TEST(CoordinatorEpochTest, JobWaitsBelowMinWorkers) {
  CoordinatorOptions options = OptionsOf(3, 1);
  options.spec.min_workers = 3;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
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

TEST(CoordinatorEpochTest, JobFailsIfOnlyDeadWorkersHadALayer) {
  CoordinatorOptions options = OptionsOf(2, 1);
  options.spec.rules.forced = Scheme::kFactor;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.Break(kWorker0);
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.ReportRest(4);
  EXPECT_EQ(driver.state(), JobState::kRunning);
  const Reaction failed = driver.Say(kNew, WorkerRequest("new"));
  EXPECT_EQ(driver.state(), JobState::kLost);
  EXPECT_THAT(driver.coordinator().reason(),
              AllOf(HasSubstr("all workers were lost"), HasSubstr("layer fc")));
  EXPECT_THAT(HearersOf<JobOver>(failed), UnorderedElementsAre(kShard0, kNew));
  EXPECT_THAT(failed.ended, UnorderedElementsAre(kShard0, kNew));
}

TEST(CoordinatorEpochTest, JoinerBringsAnEpochChange) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  const Reaction asked = driver.Say(kNew, WorkerRequest("new"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(asked),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  EXPECT_THAT(asked.sent, SizeIs(3));
  EXPECT_THAT(driver.Report(kWorker0, 4).sent, IsEmpty());
  EXPECT_THAT(driver.Report(kShard0, 4).sent, IsEmpty());
  const Reaction on = driver.Report(kWorker1, 5);
  EXPECT_THAT(HearersOf<EpochStart>(on),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1, kNew));
  const EpochStart start = Heard<EpochStart>(on, kNew);
  EXPECT_EQ(start.self, PeerId::Worker(2));
  EXPECT_FALSE(start.from_base);
  EXPECT_EQ(start.job->epoch, 2u);
  EXPECT_EQ(start.job->history.donor, 0);
  EXPECT_THAT(
      start.job->workers,
      ElementsAre(EpochWorker{0, 0}, EpochWorker{1, 0}, EpochWorker{2, 6}));
  EXPECT_THAT(SeatsOf(start),
              UnorderedElementsAre(PeerId::Shard(0), PeerId::Worker(0),
                                   PeerId::Worker(1), PeerId::Worker(2)));
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorEpochTest,
     WorkerThatJoinsInAnEpochChangeIsInTheEpochThatFollows) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  driver.Report(kWorker0, 4);
  EXPECT_THAT(driver.Say(kNew + 1, WorkerRequest("newer")).sent, IsEmpty());
  const Reaction on = driver.ReportRest(4);
  EXPECT_THAT(HearersOf<EpochStart>(on), SizeIs(5));
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{1, 0},
                          EpochWorker{2, 5}, EpochWorker{3, 5}));
}

TEST(CoordinatorEpochTest, JoinerLostDuringAnEpochChangeIsNotInTheNextEpoch) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  driver.Break(kNew);
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().epoch, 2u);
  EXPECT_EQ(driver.job().workers, FirstWorkers(2));
  // Its place is free, and so is its rank, of which no process has heard.
  driver.Pass(absl::Seconds(3));
  driver.Say(kNew + 1, WorkerRequest("newer"));
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().workers.back(), (EpochWorker{2, 5}));
}

TEST(CoordinatorEpochTest, JoinerHearsForWhichMembersItWaits) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
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

TEST(CoordinatorEpochTest, ModelOfAJoinerMustBeTheModelOfTheJob) {
  CoordinatorDriver driver(OptionsOf(1, 1, /*max_workers=*/3));
  driver.Gather();
  driver.Break(kWorker0);
  driver.Pass(absl::Seconds(1.5));
  JoinRequest request = WorkerRequest("new");
  request.layers.pop_back();
  const absl::Status why = RefusalIn(driver.Say(kNew, request), kNew);
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("the job has 2 layers, we have 1"));
}

TEST(CoordinatorEpochTest, PlaceOfADeadWorkerIsFreeAndItsRankIsNot) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  EXPECT_EQ(RefusalIn(driver.Say(kNew, WorkerRequest("early")), kNew).code(),
            absl::StatusCode::kResourceExhausted);
  driver.Pass(absl::Seconds(1.5));
  driver.Say(kNew + 1, WorkerRequest("new"));
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(Heard<EpochStart>(on, kNew + 1).self, PeerId::Worker(2));
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{2, 5}));
}

// A member of epoch 1 answers PrepareEpoch 2 by a report with target 2 and
// epoch 1.
TEST(CoordinatorEpochTest, ReportsOfAnotherTargetOrEpochAreIgnored) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  MachineReport report;
  report.begun_step = 4;
  // No report is asked for yet.
  driver.Say(kWorker0, EpochReport{0, 1, report});
  driver.Say(kWorker0, EpochReport{2, 1, report});
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
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
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
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
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  const absl::Status why =
      RefusalIn(driver.Say(kWorker1, GetParam().message), kWorker1);
  EXPECT_EQ(why.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(why.message()), HasSubstr(GetParam().part));
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
  CoordinatorDriver driver(OptionsOf(2, 2));
  driver.Gather();
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
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
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

TEST(CoordinatorLeaveTest, LeaverStaysUntilAJoinerHasFetched) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Beat(kWorker0, 7, 7);
  driver.Beat(kWorker1, 7, 7);
  driver.Say(kWorker0, Leave{7});
  driver.Say(kNew, WorkerRequest("new"));
  driver.ReportRest(7);
  EXPECT_THAT(driver.job().crew.left_workers, ElementsAre(0));
  EXPECT_THAT(driver.Beat(kNew, 7, -1).sent, IsEmpty());
  EXPECT_THAT(HearersOf<JobOver>(driver.Beat(kNew, 8, 7)),
              ElementsAre(kWorker0));
}

TEST(CoordinatorLeaveTest, LeaverMakesWayForAJoiner) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
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

// The joiner's first step is after the leaver's last. It may wait for the
// leaver, so the epoch changes at once.
TEST(CoordinatorLeaveTest, JoinerDoesNotWaitForALeaver) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  driver.ReportRest(7);
  ASSERT_EQ(driver.job().workers.back(), (EpochWorker{2, 8}));
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Say(kWorker0, Leave{7})),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1, kNew));
  driver.ReportRest(7);
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{1, 0}, EpochWorker{2, 8}));
}

TEST(CoordinatorLeaveTest, LeaverCanDie) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  driver.Say(kWorker0, Leave{7});
  driver.Break(kWorker0);
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Pass(absl::Seconds(1.5))),
              UnorderedElementsAre(kShard0, kWorker1, kWorker2));
  driver.ReportRest(7);
  EXPECT_THAT(driver.job().crew.left_workers, IsEmpty());
}

TEST(CoordinatorLeaveTest, LeaverLeavesAgainInANewSession) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kWorker0, Leave{7});
  driver.Break(kWorker0);
  EXPECT_THAT(driver.ResumeIn(kNew, kWorker0).sent, IsEmpty());
  const Reaction again = driver.Say(kNew, Leave{7});
  EXPECT_THAT(again.sent, IsEmpty());
  EXPECT_THAT(again.announced, IsEmpty());
  EXPECT_THAT(HearersOf<JobOver>(driver.Say(kWorker1, Leave{7})),
              UnorderedElementsAre(kShard0, kWorker1, kNew));
}

TEST(CoordinatorLeaveTest, JobIsFinishedIfTheLastWorkerDiesAndTheOthersLeft) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kWorker0, Leave{7});
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_EQ(driver.state(), JobState::kFinished);
}

// In partial rounds the other workers may be far from the leaver's last step,
// and never begin a later one. They go on without it at once.
TEST(CoordinatorEpochTest, LeaverNeedNotWaitInPartialRounds) {
  for (const Quorum quorum : {Quorum::kAll, Quorum::kSolo}) {
    CoordinatorOptions options = OptionsOf(2, 1);
    options.spec.options.rounds.quorum = quorum;
    CoordinatorDriver driver(options);
    driver.Gather();
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

}  // namespace
}  // namespace nereus
