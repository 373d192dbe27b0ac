#include "server/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "tests/server/coordinator_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
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
    CoordinatorDriver driver(options);
    driver.Gather();
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

TEST(CoordinatorTest, RanksFollowTheOrderOfJoining) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Say(3, WorkerRequest("late"));
  driver.Say(2, WorkerRequest("later"));
  driver.Say(1, WorkerRequest("latest"));
  const Reaction started = driver.Say(0, ShardRequest(0));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Heard<EpochStart>(started, 3 - rank).self, PeerId::Worker(rank));
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
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
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
        Refused{"NoIncarnation",
                [](auto& r) { r.incarnation = 0; },
                absl::StatusCode::kInvalidArgument,
                {"incarnation must not be 0"}},
        Refused{
            "Shape",
            [](auto& r) { r.layers[1] = FactorLayer("fc", 64, 65, true, 2); },
            absl::StatusCode::kFailedPrecondition,
            {"layer 1", "worker a", "fc fc 64x65", "fc fc 64x64"}},
        Refused{"Rows",
                [](auto& r) { r.layers[1].rows = 3; },
                absl::StatusCode::kFailedPrecondition,
                {"3 rows", "2 rows"}},
        Refused{"MissingLayer",
                [](auto& r) { r.layers.pop_back(); },
                absl::StatusCode::kFailedPrecondition,
                {"has 2 layers, we have 1", "fc fc 64x64"}},
        Refused{"MoreLayers",
                [](auto& r) { r.layers.push_back(VectorLayer("extra", 3)); },
                absl::StatusCode::kFailedPrecondition,
                {"has 2 layers, we have 3", "extra vector 1x3"}},
        Refused{"NoLayers",
                [](auto& r) { r.layers.clear(); },
                absl::StatusCode::kInvalidArgument,
                {"0 layers"}},
        Refused{"BadLayer",
                [](auto& r) { r.layers[0].n = -1; },
                absl::StatusCode::kInvalidArgument,
                {"layer scale has n -1"}},
        Refused{"ShardAfterTheLast",
                [](auto& r) { BecomeShard(r, 2); },
                absl::StatusCode::kInvalidArgument,
                {"b says it is shard 2", "2 shards"}},
        Refused{"NegativeShard",
                [](auto& r) { BecomeShard(r, -1); },
                absl::StatusCode::kInvalidArgument,
                {"shard -1"}},
        Refused{"NoName",
                [](auto& r) { r.name.clear(); },
                absl::StatusCode::kInvalidArgument,
                {"name", "not \"\""}},
        Refused{"LongName",
                [](auto& r) { r.name.assign(257, 'x'); },
                absl::StatusCode::kInvalidArgument,
                {"name", "256", "not 257"}},
        Refused{"NameWithASpace",
                [](auto& r) { r.name = "b c"; },
                absl::StatusCode::kInvalidArgument,
                {"name"}},
        Refused{"NameWithANewline",
                [](auto& r) { r.name = "b\n"; },
                absl::StatusCode::kInvalidArgument,
                {"name"}},
        Refused{"NameBeyondAscii",
                [](auto& r) { r.name = "b\xc3\xa4"; },
                absl::StatusCode::kInvalidArgument,
                {"name"}},
        Refused{"NoAddress",
                [](auto& r) { r.data_address.clear(); },
                absl::StatusCode::kInvalidArgument,
                {"data address"}},
        Refused{"AddressWithAControlCharacter",
                [](auto& r) { r.data_address = "\x1b[31m:1"; },
                absl::StatusCode::kInvalidArgument,
                {"data address"}}),
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
    JoinRequest other = ShardRequest(0);
    other.incarnation = 99;
    other.name = "other";
    const Reaction told = driver.Say(5, other);
    EXPECT_THAT(told.sent, SizeIs(1));
    EXPECT_THAT(Heard<Waiting>(told, 5).text,
                AllOf(HasSubstr("other says it is shard 0, which is s0"),
                      HasSubstr("waiting to see if that process is dead")));
    // This message may have been sent before the claim.
    EXPECT_THAT(HearersOf<Refusal>(driver.Pass(absl::Seconds(1))), IsEmpty());
    Reaction refused = driver.Pass(absl::Seconds(1));
    if (!runs) refused = driver.Say(3, Heartbeat());
    const absl::Status status = RefusalIn(refused, 5);
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("other says it is shard 0, which is s0"));
    EXPECT_EQ(driver.Status().members.size(), runs ? 2u : 1u);
  }
}

// The lease of the dead shard begins anew as the job starts. This does not
// count as a message.
TEST(CoordinatorTest, ClaimIsNotRefusedBecauseTheJobStarts) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(3, ShardRequest(0));
  JoinRequest other = ShardRequest(0);
  other.incarnation = 99;
  driver.Say(5, other);
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
  const absl::Status status = RefusalIn(driver.Say(5, WorkerRequest("c")), 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("all its 2 workers"));
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

// The bits of a product depend on the hardware and library that multiply.
TEST(CoordinatorTest, WhereLayersMayGoByFactorsAllMultiplyAlike) {
  JoinRequest with_gpu = WorkerRequest("b");
  with_gpu.layers = {
      {"fc", LayerKind::kFullyConnected, 64, 32, 64 * 32, 4, true}};
  JoinRequest with_cpu = WorkerRequest("a");
  with_cpu.layers = with_gpu.layers;
  with_gpu.products = "gpu/fp32";
  CoordinatorOptions options = OptionsOf(2, 1);
  {
    CoordinatorDriver driver(options);
    EXPECT_TRUE(RefusalIn(driver.Say(1, with_cpu), 1).ok());
    const absl::Status refused = RefusalIn(driver.Say(2, with_gpu), 2);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("b multiplies factors on \"gpu/fp32\""),
                      HasSubstr("on \"cpu\"")));
    // A worker with a GPU may join once the worker with the CPU is gone.
    driver.Break(1);
    EXPECT_TRUE(RefusalIn(driver.Say(3, with_gpu), 3).ok());
  }
  options.spec.rules.forced = Scheme::kRing;
  CoordinatorDriver driver(options);
  EXPECT_TRUE(RefusalIn(driver.Say(1, with_cpu), 1).ok());
  EXPECT_TRUE(RefusalIn(driver.Say(2, with_gpu), 2).ok());
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
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Gather();
  SessionId session = 50;
  for (const MemberMessage& message : std::vector<MemberMessage>{
           Heartbeat(), LostPeer(), EpochReport(), Leave()}) {
    const absl::Status status =
        RefusalIn(driver.Say(session, message), session);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("must begin with a join"));
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
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
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
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
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
  CoordinatorDriver driver(OptionsOf(2, 2));
  driver.Gather();
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
  const absl::Status refusal = RefusalIn(Restore(3), kShard0);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(refusal.message()),
              HasSubstr("it restores, 3.0 of 40.0 GB, and has got no further "
                        "for 10."));
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

}  // namespace
}  // namespace nereus
