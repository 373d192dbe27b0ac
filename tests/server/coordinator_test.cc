// Tests of a coordinator and the processes that join it, in this order: the
// start of a job, refusals, claims, the status, options, names, newcomers that
// must wait, ranks, hosts, and checksums of replicas.

#include "server/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "server/coordinator/replica_check.h"
#include "tests/server/coordinator_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

TEST(CoordinatorTest, LastMemberStartsTheJobForAll) {
  CoordinatorDriver driver(OptionsOf(2, 2));
  EXPECT_EQ(driver.state(), JobState::kWaiting);
  EXPECT_EQ(driver.coordinator().job(), nullptr);
  EXPECT_THAT(driver.Say(1, WorkerRequest("a")).sent, IsEmpty());
  EXPECT_THAT(driver.Say(2, ShardRequest(1)).sent, IsEmpty());
  EXPECT_THAT(driver.Say(3, ShardRequest(0)).sent, IsEmpty());
  const Reaction started = driver.Say(4, WorkerRequest("b"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_THAT(started.sent, SizeIs(4));
  EXPECT_THAT(started.ended, IsEmpty());
  const std::vector<std::pair<SessionId, PeerId>> expected = {
      {1, PeerId::Worker(0)},
      {2, PeerId::Shard(1)},
      {3, PeerId::Shard(0)},
      {4, PeerId::Worker(1)}};
  for (const auto& [session, self] : expected) {
    const EpochStart start = Heard<EpochStart>(started, session);
    EXPECT_EQ(start.self, self);
    EXPECT_FALSE(start.from_base);
    EXPECT_EQ(start.job, driver.coordinator().job());
    EXPECT_THAT(start.explanations, SizeIs(2));
    EXPECT_THAT(start.broken_links, IsEmpty());
    ASSERT_THAT(start.epoch_members, SizeIs(4));
    for (const EpochMember& each : start.epoch_members) {
      const bool shard = each.id.role == Role::kShard;
      const JoinRequest request =
          shard ? ShardRequest(each.id.rank)
                : WorkerRequest(each.id.rank == 0 ? "a" : "b");
      EXPECT_EQ(each.incarnation, request.incarnation);
      EXPECT_EQ(each.data_address, request.data_address);
    }
  }
  EXPECT_THAT(SeatsOf(Heard<EpochStart>(started, 4)),
              UnorderedElementsAre(PeerId::Worker(0), PeerId::Worker(1),
                                   PeerId::Shard(0), PeerId::Shard(1)));
  const Job& job = driver.job();
  EXPECT_EQ(job.id, kTestJobId);
  EXPECT_EQ(job.epoch, 1u);
  EXPECT_EQ(job.workers, FirstWorkers(2));
  EXPECT_EQ(job.history.first_step, 0);
  EXPECT_EQ(job.shards(), 2);
  EXPECT_EQ(job.layers, WorkerRequest("a").layers);
}

TEST(CoordinatorTest, PlanFollowsTheOptions) {
  for (const Scheme scheme : {Scheme::kServer, Scheme::kFactor}) {
    CoordinatorOptions options = OptionsOf(2, 1);
    options.spec.rules.forced = scheme;
    options.spec.options.deterministic = true;
    RunningDriver driver(options);
    EXPECT_EQ(driver.job().routes[0].scheme, Scheme::kServer);
    EXPECT_EQ(driver.job().routes[1].scheme, scheme);
    EXPECT_EQ(driver.job().options, options.spec.options);
  }
}

TEST(CoordinatorTest, OptimizerRunsWhereTheFirstWorkerSays) {
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    CoordinatorDriver driver(OptionsOf(2, 1));
    JoinRequest first = WorkerRequest("first");
    first.caller.optimizer = place;
    driver.Say(1, first);
    driver.Say(2, WorkerRequest("second"));
    driver.Say(0, ShardRequest(0));
    EXPECT_EQ(driver.job().options.optimizer_place, place);
  }
}

TEST(CoordinatorTest, WaitingMembersHearWhichMembersAreMissingAndHere) {
  CoordinatorDriver driver(OptionsOf(4, 2));
  driver.Say(1, WorkerRequest("a"));
  driver.Say(2, ShardRequest(1));
  const Reaction told = driver.Tick();
  EXPECT_THAT(HearersOf<Waiting>(told), ElementsAre(1, 2));
  EXPECT_THAT(told.sent, SizeIs(2));
  EXPECT_THAT(
      Heard<Waiting>(told, 2).text,
      AllOf(HasSubstr("job training waits for 3 more workers (4 needed)"),
            HasSubstr("shard 0 of 2"), Not(HasSubstr("shard 1 of 2")),
            HasSubstr("worker a (at a:1)"), HasSubstr("shard 1 (s1 at s1:1)")));
}

TEST(CoordinatorTest, NoticesComeAtTheirInterval) {
  CoordinatorOptions options = OptionsOf(2, 1);
  options.waiting_notice_interval = absl::Seconds(3);
  CoordinatorDriver driver(options);
  driver.Say(1, WorkerRequest("a"));
  const auto told = [&](double seconds) {
    return HearersOf<Waiting>(driver.Pass(absl::Seconds(seconds)));
  };
  EXPECT_THAT(told(0.5), ElementsAre(1));
  driver.Say(2, ShardRequest(0));
  EXPECT_THAT(told(0.5), ElementsAre(2));
  EXPECT_THAT(told(2), IsEmpty());
  EXPECT_THAT(told(0.5), ElementsAre(1));
  EXPECT_THAT(told(0.5), ElementsAre(2));
  EXPECT_THAT(told(6), ElementsAre(1, 2, 1, 2));
}

TEST(CoordinatorTest, RunningJobWaitsForNoMember) {
  RunningDriver driver(OptionsOf(2, 1));
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());
  EXPECT_EQ(driver.Status().waiting, "");
}

struct Refused {
  const char* name;
  std::function<void(JoinRequest&)> spoil;
  absl::StatusCode code;
  std::vector<std::string> parts;
};

class CoordinatorRefusalTest : public testing::TestWithParam<Refused> {};

// Worker "a" and shard 1 of two are here; "b" asks to join.
TEST_P(CoordinatorRefusalTest, IsRefusedAndTakesNoPlace) {
  CoordinatorDriver driver(OptionsOf(2, 2));
  driver.Say(1, WorkerRequest("a"));
  driver.Say(2, ShardRequest(1));
  JoinRequest request = WorkerRequest("b");
  GetParam().spoil(request);
  const Reaction refused = driver.Say(3, request);
  EXPECT_THAT(refused.sent, SizeIs(1));
  const absl::Status status = RefusalIn(refused, 3);
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const std::string& part : GetParam().parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  EXPECT_THAT(refused.announced,
              ElementsAre(HasSubstr(std::string(status.message()))));
  EXPECT_THAT(driver.Status().members, SizeIs(2));
  // The place is still free.
  EXPECT_THAT(driver.Say(4, WorkerRequest("b")).sent, IsEmpty());
  EXPECT_THAT(HearersOf<EpochStart>(driver.Say(5, ShardRequest(0))),
              UnorderedElementsAre(1, 2, 4, 5));
}

void BecomeShard(JoinRequest& request, int shard) {
  request.role = Role::kShard;
  request.shard = shard;
}

INSTANTIATE_TEST_SUITE_P(
    All, CoordinatorRefusalTest,
    testing::Values(
        Refused{"Version",
                [](auto& r) { r.protocol_version = kProtocolVersion + 1; },
                absl::StatusCode::kFailedPrecondition,
                {absl::StrCat("b (build test) speaks ", kProtocolVersion + 1),
                 absl::StrCat("speaks ", kProtocolVersion)}},
        Refused{"Job",
                [](auto& r) { r.job = "other"; },
                absl::StatusCode::kNotFound,
                {"\"other\"", "\"training\""}},
        Refused{"MissingLayer",
                [](auto& r) { r.layers.pop_back(); },
                absl::StatusCode::kFailedPrecondition,
                {"has 2 layers, we have 1", "fc fc 64x64"}},
        Refused{"MoreLayers",
                [](auto& r) { r.layers.push_back(VectorLayer("extra", 3)); },
                absl::StatusCode::kFailedPrecondition,
                {"has 2 layers, we have 3", "extra vector 1x3"}},
        Refused{"ShardAfterTheLast",
                [](auto& r) { BecomeShard(r, 2); },
                absl::StatusCode::kInvalidArgument,
                {"b says it is shard 2", "2 shards"}},
        Refused{"NegativeShard",
                [](auto& r) { BecomeShard(r, -1); },
                absl::StatusCode::kInvalidArgument,
                {"shard -1"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CoordinatorTest, ExtraWorkerIsRefusedBeforeAndAfterTheStart) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(1, WorkerRequest("a"));
  const auto refused = [&](SessionId session) {
    const absl::Status status =
        RefusalIn(driver.Say(session, WorkerRequest("b")), session);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("all its 1 workers; b would be one too many"));
  };
  refused(2);
  driver.Say(3, ShardRequest(0));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  refused(4);
}

// The other process is not refused at once: the server may be dead.
TEST(CoordinatorTest, PlaceOfALiveShardIsNotGivenAway) {
  for (const bool runs : {false, true}) {
    CoordinatorDriver driver(OptionsOf(1, 1));
    if (runs) driver.Say(1, WorkerRequest("a"));
    driver.Say(3, ShardRequest(0));
    const Reaction told = driver.Replace(5, 0);
    EXPECT_THAT(told.sent, SizeIs(1));
    EXPECT_THAT(Heard<Waiting>(told, 5).text,
                AllOf(HasSubstr("another says it is shard 0, which is s0"),
                      HasSubstr("waiting to see if that process is dead")));
    // This message may have been sent before the claim.
    EXPECT_THAT(HearersOf<Refusal>(driver.Pass(absl::Seconds(1))), IsEmpty());
    Reaction refused = driver.Pass(absl::Seconds(1));
    if (!runs) refused = driver.Say(3, Heartbeat());
    ExpectRefusal(refused, 5, absl::StatusCode::kAlreadyExists,
                  "another says it is shard 0, which is s0");
    EXPECT_EQ(driver.Status().members.size(), runs ? 2u : 1u);
  }
}

// The lease of the dead shard begins anew as the job starts. This does not
// count as a message.
TEST(CoordinatorTest, ClaimIsNotRefusedBecauseTheJobStarts) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(3, ShardRequest(0));
  driver.Replace(5, 0);
  driver.Pass(absl::Seconds(2));
  driver.Say(1, WorkerRequest("a"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  const Reaction later = driver.Pass(absl::Seconds(2), {3});
  EXPECT_THAT(HearersOf<Refusal>(later), IsEmpty());
}

TEST(CoordinatorTest, MoreWorkersThanTheJobStartsWithComeAfterItsStart) {
  CoordinatorOptions options = OptionsOf(1, 1);
  options.spec.max_workers = 2;
  CoordinatorDriver driver(options);
  driver.Say(1, WorkerRequest("a"));
  EXPECT_EQ(RefusalIn(driver.Say(2, WorkerRequest("b")), 2).code(),
            absl::StatusCode::kResourceExhausted);
  driver.Say(3, ShardRequest(0));
  EXPECT_TRUE(RefusalIn(driver.Say(4, WorkerRequest("b")), 4).ok());
  ExpectRefusal(driver.Say(5, WorkerRequest("c")), 5,
                absl::StatusCode::kResourceExhausted, "all its 2 workers");
}

TEST(CoordinatorTest, SessionThatEndsFreesItsPlaceAndItsRank) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, WorkerRequest("a"));
  driver.Say(2, WorkerRequest("b"));
  driver.Break(1);
  driver.Break(1);   // A second end does nothing.
  driver.Break(77);  // An unknown session does nothing.
  driver.Say(3, ShardRequest(0));
  EXPECT_EQ(driver.state(), JobState::kWaiting);
  const Reaction started = driver.Say(4, WorkerRequest("c"));
  EXPECT_THAT(started.sent, SizeIs(3));
  EXPECT_EQ(Heard<EpochStart>(started, 2).self, PeerId::Worker(0));
  EXPECT_EQ(Heard<EpochStart>(started, 4).self, PeerId::Worker(1));
  EXPECT_EQ(driver.job().workers, FirstWorkers(2));
}

TEST(CoordinatorTest, ShardThatLostItsSessionMayJoinAgain) {
  CoordinatorDriver driver(OptionsOf(1, 2));
  driver.Say(1, ShardRequest(1));
  driver.Break(1);
  EXPECT_TRUE(RefusalIn(driver.Say(2, ShardRequest(1)), 2).ok());
}

TEST(CoordinatorTest, ModelOfTheNextWorkerCountsIfTheFirstIsGone) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, WorkerRequest("a"));
  driver.Break(1);
  JoinRequest other = WorkerRequest("b");
  other.layers = {VectorLayer("lone", 3)};
  EXPECT_TRUE(RefusalIn(driver.Say(2, other), 2).ok());
  EXPECT_EQ(RefusalIn(driver.Say(3, WorkerRequest("c")), 3).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(CoordinatorTest, SessionBeginsWithAJoinOrAResumption) {
  RunningDriver driver(OptionsOf(1, 1));
  SessionId session = 50;
  for (const MemberMessage& message : std::vector<MemberMessage>{
           Heartbeat(), LostPeer(), EpochReport(), Leave()}) {
    ExpectRefusal(driver.Say(session, message), session,
                  absl::StatusCode::kFailedPrecondition,
                  "must begin with a join");
    ++session;
  }
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

TEST(CoordinatorTest, SessionJoinsOnce) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, WorkerRequest("a"));
  EXPECT_EQ(RefusalIn(driver.Say(1, WorkerRequest("b")), 1).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CoordinatorTest, MemberThatMisbehavesWhileGatheringLosesItsPlace) {
  for (const MemberMessage& message :
       std::vector<MemberMessage>{HeartbeatOf(-7, -1), Leave{-1}}) {
    CoordinatorDriver driver(OptionsOf(1, 1));
    driver.Say(1, WorkerRequest("a"));
    EXPECT_EQ(RefusalIn(driver.Say(1, message), 1).code(),
              absl::StatusCode::kCancelled);
    EXPECT_THAT(driver.Status().members, IsEmpty());
    driver.Gather();
  }
}

TEST(CoordinatorTest, HostileTextIsEscaped) {
  const std::string hostile = "\x1b[31m\nI 2026 forged log line";
  for (const int field : {0, 1, 2, 3}) {
    SCOPED_TRACE(field);
    CoordinatorDriver driver(OptionsOf(1, 1));
    JoinRequest request = WorkerRequest("w");
    request.protocol_version = kProtocolVersion + 1;
    if (field == 0) request.name = hostile;
    if (field == 1) request.build = hostile;
    if (field == 2) request.job = hostile;
    if (field == 3) request.data_address = hostile;
    const Reaction refused = driver.Say(1, request);
    EXPECT_THAT(std::string(RefusalIn(refused, 1).message()),
                AllOf(Not(IsEmpty()), Not(HasSubstr("\n"))));
    for (const std::string& line : refused.announced) {
      EXPECT_THAT(line, Not(HasSubstr("\n")));
    }
  }
}

TEST(CoordinatorTest, FailureIsHeardByAllMembersAndNoOther) {
  RunningDriver driver(OptionsOf(2, 1));
  const Reaction failed = driver.Fail("stopped by hand");
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(failed.sent, SizeIs(3));
  EXPECT_THAT(failed.ended, UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  for (const SessionId session : failed.ended) {
    EXPECT_EQ(Heard<JobOver>(failed, session).state, JobState::kFailed);
    EXPECT_EQ(Heard<JobOver>(failed, session).reason, "stopped by hand");
  }
  for (const SessionId session : failed.ended) {
    EXPECT_FALSE(driver.coordinator().everyone_knows());
    driver.Break(session);
  }
  EXPECT_TRUE(driver.coordinator().everyone_knows());
}

TEST(CoordinatorTest, LaterFailuresDoNotReplaceTheReason) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Fail("stopped by hand");
  EXPECT_THAT(driver.Fail("something else").sent, IsEmpty());
  driver.Break(kShard0);
  EXPECT_THAT(driver.Pass(absl::Seconds(100)).sent, IsEmpty());
  EXPECT_EQ(driver.coordinator().reason(), "stopped by hand");
  EXPECT_EQ(driver.Status().reason, "stopped by hand");
}

TEST(CoordinatorTest, FailureWhileGatheringAnswersWaitingProcesses) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, WorkerRequest("a"));
  const Reaction failed = driver.Fail("stopped by hand");
  EXPECT_EQ(Heard<JobOver>(failed, 1).reason, "stopped by hand");
  EXPECT_THAT(failed.ended, ElementsAre(1));
  const absl::Status status = RefusalIn(driver.Say(2, WorkerRequest("b")), 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stopped by hand"));
}

TEST(CoordinatorTest, StatusWhileGatheringNamesTheMissingMembers) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(1, WorkerRequest("a"));
  driver.Pass(absl::Seconds(4));
  const JobStatus status = driver.Status();
  EXPECT_EQ(status.job, "training");
  EXPECT_EQ(status.id, kTestJobId);
  EXPECT_EQ(status.epoch, 0u);
  EXPECT_EQ(status.state, JobState::kWaiting);
  EXPECT_THAT(status.waiting, AllOf(HasSubstr("1 more worker (2 needed)"),
                                    HasSubstr("shard 0 of 1")));
  EXPECT_EQ(status.workers, 2);
  EXPECT_EQ(status.shards, 1);
  ASSERT_THAT(status.members, SizeIs(1));
  EXPECT_EQ(status.members[0].id, PeerId::Worker(0));
  EXPECT_EQ(status.members[0].since_heartbeat, absl::Seconds(4));
}

TEST(CoordinatorTest, StatusShowsWorkersByRankThenShards) {
  RunningDriver driver(OptionsOf(2, 2));
  driver.Pass(absl::Seconds(2));
  driver.Beat(kWorker1, 10, 9);
  Heartbeat heartbeat;
  heartbeat.stored_bytes = 123;
  heartbeat.chunks = 4;
  driver.Say(kShard1, heartbeat);
  driver.Say(kWorker0, Leave{9});
  driver.Pass(absl::Seconds(3), {kWorker1, kShard1});
  const JobStatus status = driver.Status();
  EXPECT_EQ(status.epoch, 1u);
  EXPECT_EQ(status.state, JobState::kRunning);
  ASSERT_THAT(status.members, SizeIs(4));
  const PeerId expected[] = {PeerId::Worker(0), PeerId::Worker(1),
                             PeerId::Shard(0), PeerId::Shard(1)};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(status.members[i].id, expected[i]);
  EXPECT_TRUE(status.members[0].left);
  EXPECT_EQ(status.members[1].round, 9);
  EXPECT_EQ(status.members[1].name, "w1");
  EXPECT_EQ(status.members[1].data_address, "w1:1");
  EXPECT_EQ(status.members[1].since_heartbeat, absl::Seconds(3));
  EXPECT_FALSE(status.members[1].left);
  EXPECT_EQ(status.members[3].stored_bytes, 123);
  EXPECT_EQ(status.members[3].chunks, 4);
  EXPECT_EQ(status.members[3].since_heartbeat, absl::Seconds(3));
}

// Shard 0 restores, while all members are asked for a report.
class LongWorkTest : public testing::Test {
 protected:
  LongWorkTest() : driver_(OptionsOf(2, 1)) {
    driver_.Gather();
    driver_.Say(kWorker0, LostPeer{1, PeerId::Shard(0), "it was reset"});
    driver_.Report(kWorker0, 3);
    driver_.Report(kWorker1, 3);
    driver_.Pass(absl::Seconds(1));
  }

  // Says that shard 0 has restored so much, and passes five seconds.
  Reaction Restore(int gigabytes) {
    Heartbeat heartbeat;
    heartbeat.work =
        LongWork{LongWork::Kind::kRestore, gigabytes * int64_t{1'000'000'000},
                 40'000'000'000};
    driver_.Say(kShard0, heartbeat);
    return driver_.Pass(absl::Seconds(5), /*silent=*/{kShard0});
  }

  CoordinatorDriver driver_;
};

TEST_F(LongWorkTest, MayTakeAnyTimeAsLongAsItGetsFurther) {
  for (int gigabytes = 1; gigabytes <= 10; ++gigabytes) {
    const Reaction r = Restore(gigabytes);
    EXPECT_THAT(HearersOf<Refusal>(r), IsEmpty());
    EXPECT_THAT(HearersOf<EpochStart>(r), IsEmpty());
  }
  const std::optional<LongWork> work = driver_.Status().members.back().work;
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(work->done, 10'000'000'000);
  // The report has a whole lease after that.
  driver_.Say(kShard0, Heartbeat());
  EXPECT_THAT(HearersOf<Refusal>(driver_.Pass(absl::Seconds(9))), IsEmpty());
  EXPECT_EQ(RefusalIn(driver_.Pass(absl::Seconds(2)), kShard0).code(),
            absl::StatusCode::kCancelled);
}

TEST_F(LongWorkTest, ThatGetsNoFurtherForALeaseIsADeath) {
  Restore(3);
  Restore(3);
  ExpectRefusal(Restore(3), kShard0, absl::StatusCode::kCancelled,
                "it restores, 3.0 of 40.0 GB, and has got no further "
                "for 10.");
}

struct BadOptions {
  const char* name;
  std::function<void(CoordinatorOptions&)> spoil;
  const char* message;
};

class CoordinatorOptionsTest : public testing::TestWithParam<BadOptions> {};

TEST_P(CoordinatorOptionsTest, IsRefusedWithItsValue) {
  CoordinatorOptions options = OptionsOf(2, 2);
  ASSERT_TRUE(options.Validate().ok()) << options.Validate();
  GetParam().spoil(options);
  const absl::Status status = options.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, CoordinatorOptionsTest,
    testing::Values(
        BadOptions{"Job", [](auto& o) { o.spec.name = "a b"; }, "job name"},
        BadOptions{"NoJob", [](auto& o) { o.spec.name.clear(); }, "job name"},
        BadOptions{"Workers", [](auto& o) { o.spec.workers = 0; },
                   "--workers: \"0\" is not a number from 1 to 65536"},
        BadOptions{"TooManyWorkers", [](auto& o) { o.spec.workers = 65537; },
                   "--workers: \"65537\" is not"},
        BadOptions{"Shards", [](auto& o) { o.spec.shards = -1; },
                   "--servers: \"-1\" is not"},
        BadOptions{"NoMinWorkers", [](auto& o) { o.spec.min_workers = 0; },
                   "--min-workers: \"0\" is not"},
        BadOptions{"MinWorkers", [](auto& o) { o.spec.min_workers = 3; },
                   "--min-workers is 3, --workers only 2"},
        BadOptions{"FewMaxWorkers", [](auto& o) { o.spec.max_workers = 1; },
                   "--max-workers is 1, --workers is 2"},
        BadOptions{"NegativeMaxWorkers",
                   [](auto& o) { o.spec.max_workers = -1; },
                   "--max-workers: \"-1\" is not"},
        BadOptions{"ManyMaxWorkers",
                   [](auto& o) { o.spec.max_workers = 65537; },
                   "--max-workers: \"65537\" is not"},
        BadOptions{"Lease", [](auto& o) { o.spec.lease_seconds = 2.999; },
                   "--lease: \"2.999\" is not a number from 3 to"},
        BadOptions{"NoGrace",
                   [](auto& o) { o.reconnect_grace = absl::ZeroDuration(); },
                   "reconnect_grace is 0"},
        BadOptions{"GraceBeyondTheLease",
                   [](auto& o) { o.reconnect_grace = absl::Seconds(11); },
                   "reconnect_grace is 11s"},
        BadOptions{
            "Notice",
            [](auto& o) { o.waiting_notice_interval = absl::ZeroDuration(); },
            "waiting_notice_interval is 0, must be positive"},
        BadOptions{"Optimizer",
                   [](auto& o) { o.spec.options.optimizer.beta1 = 2.0f; },
                   "--beta1: \"2\" is not"}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- Workers that join with the name of another worker.

// Request of another process with the name of worker `name`.
JoinRequest Another(const std::string& name, uint64_t incarnation = 99) {
  JoinRequest request = WorkerRequest(name);
  request.incarnation = incarnation;
  request.data_address = name + ":2";
  return request;
}

void ExpectHeld(const Reaction& reaction, SessionId session) {
  EXPECT_THAT(Heard<Waiting>(reaction, session).text,
              AllOf(HasSubstr("w1 is the name of a worker at w1:1; --name "
                              "gives each worker its own"),
                    HasSubstr("waiting to see if that process is dead")));
  EXPECT_THAT(HearersOf<Refusal>(reaction), IsEmpty());
  EXPECT_THAT(reaction.ended, IsEmpty());
}

void ExpectNameTaken(const Reaction& reaction, SessionId session) {
  const absl::Status why = RefusalIn(reaction, session);
  EXPECT_EQ(why.code(), absl::StatusCode::kAlreadyExists) << why;
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("is the name of a worker at"),
                    HasSubstr("--name gives each worker its own")));
}

// The job has all its workers, and has room for the new one nevertheless.
TEST(CoordinatorNamesTest, WorkerWithoutASessionIsReplacedAtOnce) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Break(kWorker1);
  const Reaction joined = driver.Say(kNew, Another("w1"));
  EXPECT_THAT(joined.announced,
              Contains("worker w1 (at w1:1) was removed: another process takes "
                       "its place"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(joined),
              UnorderedElementsAre(kShard0, kWorker0));
  const Reaction on = driver.ReportRest(4);
  // The new process gets a rank that no worker has had.
  EXPECT_EQ(Heard<EpochStart>(on, kNew).self, PeerId::Worker(2));
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{2, 5}));
  EXPECT_THAT(driver.job().crew.worker_names,
              UnorderedElementsAre(Pair(0, "w0"), Pair(2, "w1")));
  EXPECT_THAT(on.announced, Contains(HasSubstr("worker w1 is back")));
}

// A host that lost its power closes no session: the session stays open until
// the lease ends.
TEST(CoordinatorNamesTest,
     ClaimToTheNameOfASilentWorkerWaitsUntilThatWorkerIsDead) {
  RunningDriver driver(OptionsOf(2, 1));
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  const Reaction waiting = driver.Pass(absl::Seconds(10), {kWorker1, kNew});
  EXPECT_THAT(HearersOf<Refusal>(waiting), IsEmpty());
  EXPECT_EQ(driver.job().epoch, 1u);
  const Reaction gone = driver.Pass(absl::Seconds(1), {kWorker1, kNew});
  EXPECT_THAT(gone.announced,
              Contains(HasSubstr("worker w1 (at w1:1) was removed: "
                                 "it sent nothing for")));
  EXPECT_EQ(Heard<EpochStart>(driver.ReportRest(4), kNew).self,
            PeerId::Worker(2));
}

TEST(CoordinatorNamesTest, ClaimToTheNameOfALiveWorkerIsRefused) {
  RunningDriver driver(OptionsOf(2, 1));
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  // The worker may have sent these messages before the claim, and have died.
  EXPECT_THAT(HearersOf<Refusal>(driver.Pass(kHeartbeatInterval)), IsEmpty());
  ExpectNameTaken(driver.Pass(absl::Seconds(1)), kNew);
  // The job goes on in its epoch.
  EXPECT_EQ(driver.job().epoch, 1u);
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorNamesTest, NameIsTakenWhileWorkersGatherToo) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Say(kWorker1, WorkerRequest("w1"));
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  driver.Pass(absl::Seconds(2));
  ExpectNameTaken(driver.Say(kWorker1, Heartbeat()), kNew);
  EXPECT_THAT(driver.Status().members, SizeIs(1));
  // Another name is free.
  EXPECT_THAT(driver.Say(kNew + 1, WorkerRequest("w2")).sent, IsEmpty());
}

TEST(CoordinatorNamesTest, NameOfAWorkerThatGoesWhileWorkersGatherIsFree) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(kWorker1, WorkerRequest("w1"));
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  EXPECT_THAT(HearersOf<Refusal>(driver.Break(kWorker1)), IsEmpty());
  ASSERT_THAT(driver.Status().members, SizeIs(1));
  EXPECT_EQ(driver.Status().members[0].data_address, "w1:2");
}

TEST(CoordinatorNamesTest, ClaimEndsWithItsSession) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Say(kNew, Another("w1"));
  driver.Break(kNew);
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(2));
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().worker_count(), 1);
}

TEST(CoordinatorNamesTest, ProcessThatAsksAgainInANewSessionWaitsThere) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Say(kNew, Another("w1"));
  const Reaction again = driver.Say(kNew + 1, Another("w1"));
  EXPECT_THAT(again.ended, ElementsAre(kNew));
  EXPECT_THAT(HearersOf<Waiting>(again), ElementsAre(kNew + 1));
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(2));
  EXPECT_EQ(HearersOf<EpochStart>(driver.ReportRest(4)),
            (std::vector<SessionId>{kShard0, kWorker0, kNew + 1}));
}

TEST(CoordinatorNamesTest, FirstOfTwoClaimsGetsADeadWorkersPlace) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Say(kNew, Another("w1", 98));
  driver.Pass(absl::Milliseconds(500));
  driver.Say(kNew + 1, Another("w1", 99));
  driver.Break(kWorker1);
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(RefusalIn(on, kNew).code(), absl::StatusCode::kOk);
  EXPECT_EQ(Heard<EpochStart>(on, kNew).self, PeerId::Worker(2));
  ExpectNameTaken(driver.Pass(absl::Seconds(3)), kNew + 1);
}

// A process may die while it waits for the place.
TEST(CoordinatorNamesTest, GettingAPlaceDoesNotCountAsAMessage) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Say(kNew, Another("w1", 98));
  driver.Say(kNew + 1, Another("w1", 99));
  const Reaction gone = driver.Pass(absl::Seconds(11), {kWorker1});
  EXPECT_EQ(RefusalIn(gone, kWorker1).code(), absl::StatusCode::kCancelled);
  ASSERT_THAT(driver.Status().members, SizeIs(3));
  EXPECT_TRUE(RefusalIn(gone, kNew + 1).ok()) << RefusalIn(gone, kNew + 1);
  // The process that got the place is dead too. It was in no epoch, so its rank
  // is free.
  driver.Break(kNew);
  EXPECT_EQ(Heard<EpochStart>(driver.ReportRest(4), kNew + 1).self,
            PeerId::Worker(2));
}

// A worker that has left needs no place any more.
TEST(CoordinatorNamesTest, WorkerThatHasLeftLeavesItsName) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Beat(kWorker1, 3, 3);
  driver.Say(kWorker1, Leave{3});
  const Reaction joined = driver.Say(kNew, Another("w1"));
  EXPECT_THAT(HearersOf<Waiting>(joined), IsEmpty());
  EXPECT_TRUE(RefusalIn(joined, kNew).ok()) << RefusalIn(joined, kNew);
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(Heard<EpochStart>(on, kNew).self, PeerId::Worker(2));
  EXPECT_EQ(driver.job().NameOf(PeerId::Worker(2)), "worker w1");
}

// Members are of two kinds: "worker s0" is not "shard 0".
TEST(CoordinatorNamesTest, WorkerMayHaveTheNameOfAServersProcess) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(kShard0, ShardRequest(0));
  const Reaction started = driver.Say(kWorker0, Another("s0"));
  EXPECT_THAT(HearersOf<Waiting>(started), IsEmpty());
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().NameOf(PeerId::Worker(0)), "worker s0");
}

// A process that would be refused anyway does not cost a worker its place.
TEST(CoordinatorNamesTest, RefusedWorkerDoesNotTakeAPlace) {
  RunningDriver driver(OptionsOf(2, 1));
  driver.Break(kWorker1);
  std::vector<JoinRequest> wrong(4, Another("w1"));
  wrong[0].protocol_version += 1;
  wrong[1].layers.pop_back();
  wrong[2].products = "gpu/fp32";
  wrong[3].caller.optimizer = OptimizerPlace::kWorker;
  for (size_t i = 0; i < wrong.size(); ++i) {
    const auto session = kNew + static_cast<SessionId>(i);
    const Reaction refused = driver.Say(session, wrong[i]);
    EXPECT_FALSE(RefusalIn(refused, session).ok()) << i;
    EXPECT_THAT(refused.announced,
                Not(Contains(HasSubstr("worker w1 (at w1:1) was removed"))));
  }
  EXPECT_THAT(driver.ResumeIn(kNew + 9, kWorker1).sent, IsEmpty());
  EXPECT_EQ(driver.job().epoch, 1u);
}

// ---- Processes that must wait until they may join (JoinBrake).

// A worker joins in `session`, and ends at once when the epoch has begun.
void JoinAndEnd(CoordinatorDriver& driver, const std::string& name,
                SessionId session) {
  driver.Say(session, WorkerRequest(name));
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().worker_count(), 3);
  driver.Lose(session);
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().worker_count(), 2);
}

TEST(CoordinatorJoinTest, WorkerThatEndsAtOnceMakesTheNextOneWait) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  JoinAndEnd(driver, "w2", kNew);
  const uint64_t epoch = driver.job().epoch;
  const Reaction joins = driver.Say(kNew + 1, WorkerRequest("w3"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(joins), IsEmpty());
  const Reaction told = driver.Tick();
  EXPECT_THAT(Heard<Waiting>(told, kNew + 1).text, HasSubstr("w3 waits "));
  EXPECT_THAT(
      Heard<Waiting>(told, kNew + 1).text,
      HasSubstr("because processes that joined lately ended soon, and stopped "
                "the steps for 1."));
  EXPECT_THAT(told.announced, Contains(HasSubstr("w3 at w3:1 waits ")));
  EXPECT_THAT(driver.Status().newcomers, ElementsAre(HasSubstr("w3 waits ")));
  EXPECT_EQ(driver.Status().waiting, "");  // The job itself waits for nothing.
  // A second newcomer is admitted together with the first one.
  driver.Beat(kNew + 1, -1, -1);
  driver.Pass(absl::Seconds(9));
  driver.Beat(kNew + 1, -1, -1);
  driver.Pass(absl::Seconds(9));
  driver.Say(kNew + 2, WorkerRequest("w4"));
  EXPECT_EQ(driver.job().epoch, epoch);
  for (int i = 0; i < 14; ++i) {
    driver.Beat(kNew + 1, -1, -1);
    driver.Beat(kNew + 2, -1, -1);
    driver.Pass(absl::Seconds(1));
  }
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().worker_count(), 4);
  EXPECT_EQ(driver.job().epoch, epoch + 1);
  EXPECT_THAT(driver.Status().newcomers, IsEmpty());
}

TEST(CoordinatorJoinTest, WorkerThatIsNeverAdmittedGivesItsRankBack) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  for (int i = 0; i < 3; ++i) {
    driver.Say(kNew + i, WorkerRequest(absl::StrCat("gone", i)));
    driver.Break(kNew + i);
    driver.ReportRest(4);
    driver.Pass(absl::Minutes(1));
  }
  driver.Say(kNew + 5, WorkerRequest("stays"));
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(Heard<EpochStart>(on, kNew + 5).self, PeerId::Worker(2));
  EXPECT_EQ(on.saved.back().next_rank, 3);
}

TEST(CoordinatorJoinTest, RankOfADeadWorkerIsNotGivenAgain) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  JoinAndEnd(driver, "w2", kNew);
  driver.Pass(absl::Minutes(1));
  driver.Say(kNew + 1, WorkerRequest("w2"));
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(Heard<EpochStart>(on, kNew + 1).self, PeerId::Worker(3));
}

TEST(CoordinatorJoinTest, WaitingProcessHearsThatTheJobIsOver) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  JoinAndEnd(driver, "w2", kNew);
  driver.Say(kNew + 1, WorkerRequest("w3"));
  driver.Fail("over");
  EXPECT_FALSE(driver.coordinator().everyone_knows());
  EXPECT_THAT(RefusalIn(driver.Tick(), kNew + 1).ToString(), HasSubstr("over"));
}

TEST(CoordinatorJoinTest, WaitingProcessMayGo) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  JoinAndEnd(driver, "w2", kNew);
  driver.Say(kNew + 1, WorkerRequest("w3"));
  driver.Break(kNew + 1);
  EXPECT_THAT(driver.Status().newcomers, IsEmpty());
  driver.Pass(absl::Minutes(1));
  EXPECT_EQ(driver.job().worker_count(), 2);
}

// ---- Ranks of workers at the start of a job.

struct Joiner {
  std::string name;
  std::optional<int32_t> rank;
  std::string machine;
};

// Lets the workers join in this order, with a server between the first two.
// Returns the names of the workers by their ranks.
std::vector<std::string> NamesByRank(const std::vector<Joiner>& joiners,
                                     CoordinatorDriver& driver) {
  SessionId session = kWorker0;
  for (const Joiner& joiner : joiners) {
    JoinRequest request = WorkerRequest(joiner.name);
    request.launch_rank = joiner.rank;
    request.host = {"", joiner.machine};
    driver.Say(session++, request);
    if (session == kWorker1) driver.Say(kShard0, ShardRequest(0));
  }
  std::vector<std::string> names;
  for (const auto& [rank, name] : driver.job().crew.worker_names) {
    names.push_back(name);
  }
  return names;
}

// Workers in the order of joining, and their names by rank.
struct Launch {
  const char* name;
  std::vector<Joiner> joiners;
  std::vector<std::string> by_rank;
};

class LaunchRanksTableTest : public testing::TestWithParam<Launch> {};

TEST_P(LaunchRanksTableTest, RanksAreThoseOfTheLauncherIfEachHasAnother) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  EXPECT_EQ(NamesByRank(GetParam().joiners, driver), GetParam().by_rank);
  EXPECT_EQ(driver.job().workers[2].rank, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Launches, LaunchRanksTableTest,
    testing::Values(Launch{"WhateverTheOrderOfJoining",
                           {{"c", 2, ""}, {"a", 0, ""}, {"b", 1, ""}},
                           {"a", "b", "c"}},
                    Launch{"GapsInTheNumbersMakeNoGapsInTheRanks",
                           {{"c", 70, ""}, {"a", 2, ""}, {"b", 5, ""}},
                           {"a", "b", "c"}},
                    // The order of joining decides, host by host.
                    Launch{"WorkerWithoutANumber",
                           {{"c", 2, "x"}, {"a", {}, "y"}, {"b", 0, "x"}},
                           {"c", "b", "a"}},
                    Launch{"NumberThatOccursTwice",
                           {{"c", 1, ""}, {"a", 1, ""}, {"b", 0, ""}},
                           {"c", "a", "b"}}),
    [](const auto& info) { return std::string(info.param.name); });

// A launcher that deals its processes out to the hosts in turn.
TEST(LaunchRanksTest, RanksOfAHostNeedNotBeAdjacent) {
  CoordinatorDriver driver(OptionsOf(4, 1));
  EXPECT_THAT(
      NamesByRank({{"d", 3, "y"}, {"c", 2, "x"}, {"b", 1, "y"}, {"a", 0, "x"}},
                  driver),
      ElementsAre("a", "b", "c", "d"));
  const Job& job = driver.job();
  EXPECT_EQ(job.workers[0].host, job.workers[2].host);
  EXPECT_EQ(job.workers[1].host, job.workers[3].host);
  EXPECT_NE(job.workers[0].host, job.workers[1].host);
  // The gradients of a host are added together all the same.
  EXPECT_THAT(job.LineupOf(0).at(0), ElementsAre(0, 2));
  EXPECT_THAT(job.LineupOf(0).at(1), ElementsAre(1, 3));
}

TEST(LaunchRanksTest, ProcessThatIsStartedAgainGetsANewRank) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  NamesByRank({{"b", 1, ""}, {"a", 0, ""}}, driver);
  driver.Break(kWorker0);
  JoinRequest again = WorkerRequest("b");
  again.incarnation += 1000;
  again.launch_rank = 1;
  driver.Say(kWorker2, again);
  driver.ReportRest(0);
  EXPECT_THAT(driver.job().crew.worker_names,
              ElementsAre(Pair(0, "a"), Pair(2, "b")));
}

TEST(LaunchRanksTest, NumberOutOfRangeIsRefused) {
  for (const int32_t rank : {-1, kRanksMax}) {
    CoordinatorDriver driver(OptionsOf(2, 1));
    JoinRequest request = WorkerRequest("a");
    request.launch_rank = rank;
    ExpectRefusal(driver.Say(kWorker0, request), kWorker0,
                  absl::StatusCode::kInvalidArgument, std::to_string(rank));
  }
}

// ---- Numbers of hosts. host_table_test.cc has their rules.

// Returns `request` of a process on `machine`.
JoinRequest On(const std::string& machine, JoinRequest request,
               const std::string& node = "") {
  request.host = {node, machine};
  return request;
}

// Returns the hosts in the status, by name of the member.
std::map<std::string, int32_t> HostsInStatus(const CoordinatorDriver& driver) {
  std::map<std::string, int32_t> hosts;
  for (const JobStatus::Member& member : driver.Status().members) {
    hosts[member.name] = member.host;
  }
  return hosts;
}

// Returns the hosts that members see, by identifier.
std::map<PeerId, int32_t> HostsIn(const EpochStart& start) {
  std::map<PeerId, int32_t> hosts;
  for (const EpochMember& each : start.epoch_members) {
    hosts[each.id] = each.host;
  }
  return hosts;
}

// A job with shard 0 on machine "y", and workers on machines "x", "y", "x" and
// on an unknown one.
class HostNumbersTest : public testing::Test {
 protected:
  HostNumbersTest() {
    driver_.Say(kShard0, On("y", ShardRequest(0)));
    driver_.Say(kWorker0, On("x", WorkerRequest("w0")));
    driver_.Say(kWorker1, On("y", WorkerRequest("w1")));
    driver_.Say(kWorker2, On("x", WorkerRequest("w2")));
    begins_ = driver_.Say(kWorker2 + 1, On("", WorkerRequest("w3")));
  }

  CoordinatorDriver driver_{OptionsOf(4, 1, /*max_workers=*/6)};
  Reaction begins_;  // Begin of the job.
};

TEST_F(HostNumbersTest, WorkersGetRanksHostByHost) {
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker0).self, PeerId::Worker(0));
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker2).self, PeerId::Worker(1));
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker1).self, PeerId::Worker(2));
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker2 + 1).self, PeerId::Worker(3));
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 0, 0}, EpochWorker{1, 0, 0},
                          EpochWorker{2, 0, 1}, EpochWorker{3, 0, -1}));
  EXPECT_EQ(driver_.job().NameOf(PeerId::Worker(1)), "worker w2");
}

TEST_F(HostNumbersTest, MembersAndTheStatusHaveTheNumbers) {
  EXPECT_THAT(
      HostsIn(Heard<EpochStart>(begins_, kShard0)),
      ElementsAre(Pair(PeerId::Worker(0), 0), Pair(PeerId::Worker(1), 0),
                  Pair(PeerId::Worker(2), 1), Pair(PeerId::Worker(3), -1),
                  Pair(PeerId::Shard(0), 1)));
  EXPECT_THAT(HostsInStatus(driver_),
              ElementsAre(Pair("s0", 1), Pair("w0", 0), Pair("w1", 1),
                          Pair("w2", 0), Pair("w3", -1)));
}

TEST_F(HostNumbersTest, JoinersGetTheNextRanksAndTheNumbersOfTheirHosts) {
  driver_.Say(kNew, On("y", WorkerRequest("w4")));
  driver_.Say(kNew + 1, On("z", WorkerRequest("w5")));
  driver_.ReportRest(4);
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 0, 0}, EpochWorker{1, 0, 0},
                          EpochWorker{2, 0, 1}, EpochWorker{3, 0, -1},
                          EpochWorker{4, 5, 1}, EpochWorker{5, 5, 2}));
  EXPECT_THAT(HostsInStatus(driver_), Contains(Pair("w5", 2)));
}

// Two workers of one host that have never been connected, beside a third one
// elsewhere.
class HostSplitTest : public HostNumbersTest {
 protected:
  // Worker 1 (w2), or the worker of `session`, reports that it has never
  // reached `peer`, or has lost it.
  Reaction Lose(SessionId session, PeerId peer, bool reached) {
    return driver_.Say(session,
                       LostPeer{driver_.job().epoch, peer, "refused", reached});
  }
  int32_t HostOfWorker(int rank) { return driver_.job().workers[rank].host; }
};

TEST_F(HostSplitTest, MatesThatCannotConnectAreTwoHosts) {
  const Reaction asked = Lose(kWorker2, PeerId::Worker(0), /*reached=*/false);
  EXPECT_THAT(asked.announced,
              ElementsAre(HasSubstr("worker w2 and worker w0 cannot connect")));
  EXPECT_THAT(HearersOf<PrepareEpoch>(asked), SizeIs(5));
  // The report may be repeated in another session, and by the other end.
  EXPECT_THAT(Lose(kWorker2, PeerId::Worker(0), false).announced, IsEmpty());
  EXPECT_THAT(Lose(kWorker0, PeerId::Worker(1), false).announced, IsEmpty());
  const Reaction on = driver_.ReportRest(4);
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 0, 0}, EpochWorker{1, 0, -1},
                          EpochWorker{2, 0, 1}, EpochWorker{3, 0, -1}));
  EXPECT_THAT(on.announced, Contains(HasSubstr("worker w0 and worker w2 could "
                                               "not connect, and are two")));
  const EpochStart start = Heard<EpochStart>(on, kWorker0);
  EXPECT_THAT(HostsIn(start), Contains(Pair(PeerId::Worker(1), -1)));
  EXPECT_THAT(start.broken_links,
              ElementsAre(Pair(PeerId::Worker(0), PeerId::Worker(1))));
  for (const JobStatus::Member& member : driver_.Status().members) {
    EXPECT_EQ(member.split, member.name == "w2") << member.name;
  }
}

// No link is lost often enough for a member to go: there was none.
TEST_F(HostSplitTest, SplitWorkersStayMembers) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    Lose(kWorker2, PeerId::Worker(0), /*reached=*/false);
    driver_.ReportRest(4);
  }
  EXPECT_EQ(driver_.job().worker_count(), 4);
}

TEST_F(HostSplitTest, WorkersOfDifferentHostsStayAsTheyAre) {
  Lose(kWorker1, PeerId::Worker(0), /*reached=*/false);
  driver_.ReportRest(4);
  EXPECT_EQ(HostOfWorker(0), 0);
  EXPECT_EQ(HostOfWorker(2), 1);
}

// The mate may have died, and the coordinator will hear so soon.
TEST_F(HostSplitTest, MateWithoutASessionIsNotSplit) {
  driver_.Break(kWorker0);
  Lose(kWorker2, PeerId::Worker(0), /*reached=*/false);
  driver_.ResumeIn(kNew, kWorker0);
  driver_.ReportRest(4);
  EXPECT_EQ(HostOfWorker(1), 0);
}

TEST(HostNewsTest, TwoMachinesWithOneNodeAreAnnounced) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Say(kShard0, On("x", ShardRequest(0), "n"));
  driver.Say(kWorker0, On("x", WorkerRequest("a"), "n"));
  EXPECT_THAT(driver.Say(kWorker1, On("y", WorkerRequest("b"), "n")).announced,
              Contains(HasSubstr("a and b both say --node=n")));
  driver.Say(kNew, On("z", WorkerRequest("c"), "n"));
  EXPECT_THAT(driver.ReportRest(4).announced,
              Not(Contains(HasSubstr("--node"))));
}

// Such processes may be anywhere.
TEST(HostNewsTest, WithoutClaimsRanksFollowTheOrderOfJoining) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  const Reaction begins = driver.Gather();
  EXPECT_THAT(
      driver.job().workers,
      ElementsAre(EpochWorker{0, 0}, EpochWorker{1, 0}, EpochWorker{2, 0}));
  EXPECT_EQ(Heard<EpochStart>(begins, kWorker2).self, PeerId::Worker(2));
  EXPECT_THAT(begins.saved.back().hosts.hosts, IsEmpty());
}

// ---- Checksums of replicas. replica_check_test.cc tests the comparison.

// Reports checksums of layers "scale" and "fc", in the job's epoch.
Reaction Report(CoordinatorDriver& driver, SessionId session, int64_t round,
                std::vector<uint32_t> layers) {
  return driver.Say(
      session, ReplicaChecksums{driver.job().epoch, round, std::move(layers)});
}

TEST(CoordinatorReplicaTest, DifferentReplicasEndTheJobWithBothNames) {
  RunningDriver driver(OptionsOf(2, 1));
  Report(driver, kWorker1, 3, {1, 2});
  const Reaction failed = Report(driver, kWorker0, 3, {1, 0xabc});
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(HearersOf<JobOver>(failed),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  EXPECT_THAT(Heard<JobOver>(failed, kShard0).reason,
              HasSubstr("replicas differ after step 3: the parameters of layer "
                        "fc have checksum 00000002 on worker w1 and 00000abc "
                        "on worker w0"));
  EXPECT_EQ(Heard<JobOver>(failed, kShard0).state, JobState::kFailed);
}

Reaction Sample(CoordinatorDriver& driver, SessionId session, int64_t round,
                std::vector<uint32_t> layers) {
  return driver.Say(session, ReplicaChecksums{driver.job().epoch, round,
                                              std::move(layers), true});
}

TEST(CoordinatorReplicaTest, DifferenceWaitsTwoSecondsForASilentWorker) {
  RunningDriver driver(OptionsOf(3, 1));
  Sample(driver, kWorker2, 512, {1, 7});
  Sample(driver, kWorker0, 512, {1, 2});
  driver.Pass(absl::Milliseconds(1500));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.Pass(absl::Seconds(1));
  EXPECT_EQ(driver.state(), JobState::kFailed);
}

TEST(CoordinatorReplicaTest, DifferenceCountsThoughAnEpochBegins) {
  RunningDriver driver(OptionsOf(3, 1, /*max_workers=*/4));
  Sample(driver, kWorker2, 512, {1, 7});
  Sample(driver, kWorker0, 512, {1, 2});
  driver.Say(kNew, WorkerRequest("new"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.ReportRest(513);
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(driver.coordinator().reason(), HasSubstr("replicas differ"));
}

TEST(CoordinatorReplicaTest, DifferenceCountsThoughAllWorkersLeave) {
  RunningDriver driver(OptionsOf(3, 1));
  Report(driver, kWorker2, 9, {1, 7});
  Report(driver, kWorker0, 9, {1, 2});
  for (const SessionId session : {kWorker0, kWorker1, kWorker2}) {
    EXPECT_EQ(driver.state(), JobState::kRunning);
    driver.Say(session, Leave{9});
  }
  EXPECT_EQ(driver.state(), JobState::kFailed);
}

TEST(CoordinatorReplicaTest, ReportThatDoesNotFitTheModelRemovesOnlyItsSender) {
  RunningDriver driver(OptionsOf(2, 1));
  const Reaction refused = Report(driver, kWorker1, 3, {1, 2, 3});
  ExpectRefusal(refused, kWorker1, absl::StatusCode::kCancelled,
                "worker w1 reports 3 checksums as of round 3, the "
                "model has 2 layers");
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().worker_count(), 1);
}

TEST(CoordinatorReplicaTest, ReportsOfAnotherEpochAreNotCompared) {
  RunningDriver driver(OptionsOf(2, 1));
  Report(driver, kWorker0, 3, {1, 2});
  for (const uint64_t epoch : {0, 2}) {
    driver.Say(kWorker1, ReplicaChecksums{epoch, 3, {7, 8}});
  }
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

// A shard has no replica. A process that is not admitted yet has no replica of
// this job.
TEST(CoordinatorReplicaTest, OnlyWorkersOfTheEpochHaveReplicas) {
  RunningDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  Report(driver, kWorker0, 3, {1, 2});
  Report(driver, kShard0, 3, {7, 8});
  driver.Say(kNew, WorkerRequest("new"));
  Report(driver, kNew, 3, {7, 8});
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.ReportRest(5);
  EXPECT_EQ(driver.job().epoch, 2u);
}

// A worker that leaves reports its last round.
TEST(CoordinatorReplicaTest, LastRoundIsComparedThoughAWorkerHasLeft) {
  RunningDriver driver(OptionsOf(2, 1));
  Report(driver, kWorker0, 9, {1, 2});
  driver.Say(kWorker0, Leave{9});
  ASSERT_EQ(driver.state(), JobState::kRunning);
  const Reaction failed = Report(driver, kWorker1, 9, {1, 3});
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(Heard<JobOver>(failed, kWorker0).reason,
              AllOf(HasSubstr("after step 9"), HasSubstr("worker w0"),
                    HasSubstr("worker w1")));
}

}  // namespace
}  // namespace nereus
