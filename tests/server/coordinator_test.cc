#include "server/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/version.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr uint64_t kJobId = 4711;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

CoordinatorOptions Options(int workers, int shards) {
  CoordinatorOptions options;
  options.job = "training";
  options.job_id = kJobId;
  options.workers = workers;
  options.shards = shards;
  return options;
}

std::vector<LayerSpec> Model() {
  return {VectorLayer("scale", 8), FactorLayer("fc", 64, 64, true, 2)};
}

JoinRequest WorkerRequest(std::string name) {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = "test";
  request.job = "training";
  request.name = name;
  request.data_address = name + ":1";
  request.layers = Model();
  return request;
}

JoinRequest ShardRequest(int shard) {
  JoinRequest request = WorkerRequest("s" + std::to_string(shard));
  request.role = Role::kShard;
  request.shard = shard;
  request.layers.clear();
  return request;
}

// The actions of one kind in `out`.
template <typename T>
std::vector<T> Only(const CoordinatorOutbox& out) {
  std::vector<T> found;
  for (const CoordinatorAction& action : out) {
    if (const auto* typed = std::get_if<T>(&action)) found.push_back(*typed);
  }
  return found;
}

CoordinatorOutbox Join(Coordinator& coordinator, JoinId join,
                       const JoinRequest& request, absl::Time now = At(0)) {
  CoordinatorOutbox out;
  coordinator.OnJoin(join, request, now, out);
  return out;
}

// The reason for which a join is refused at once; OK if it is not.
absl::Status RefusalOf(Coordinator& coordinator, JoinId join,
                       const JoinRequest& request) {
  const auto out = Join(coordinator, join, request);
  const auto refused = Only<RefuseJoin>(out);
  if (refused.empty()) return absl::OkStatus();
  EXPECT_THAT(out, SizeIs(1));
  EXPECT_EQ(refused[0].join, join);
  return refused[0].why;
}

// A job with all members: workers w0, w1, ... by joins 10, 11, ..., shards by
// joins 0, 1, ...
Coordinator RunningJob(int workers, int shards, absl::Time now = At(0)) {
  Coordinator coordinator(Options(workers, shards));
  for (int shard = 0; shard < shards; ++shard) {
    Join(coordinator, shard, ShardRequest(shard), now);
  }
  for (int worker = 0; worker < workers; ++worker) {
    Join(coordinator, 10 + worker, WorkerRequest("w" + std::to_string(worker)),
         now);
  }
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
  return coordinator;
}

Heartbeat BeatOf(PeerId member, int64_t round = kInitialRound) {
  Heartbeat heartbeat;
  heartbeat.job = kJobId;
  heartbeat.epoch = 1;
  heartbeat.member = member;
  heartbeat.round = round;
  return heartbeat;
}

JobVerdict Beat(Coordinator& coordinator, const Heartbeat& heartbeat,
                absl::Time now) {
  const auto verdict = coordinator.OnHeartbeat(heartbeat, now);
  EXPECT_TRUE(verdict.ok()) << verdict.status();
  return verdict.value_or(JobVerdict{});
}

void Leave(Coordinator& coordinator, PeerId member) {
  const absl::Status status = coordinator.OnLeave(kJobId, 1, member);
  EXPECT_TRUE(status.ok()) << status;
}

void Tick(Coordinator& coordinator, absl::Time now) {
  CoordinatorOutbox out;
  coordinator.OnTick(now, out);
  EXPECT_THAT(out, IsEmpty());
}

TEST(CoordinatorTest, TheLastMemberStartsTheJobForAll) {
  Coordinator coordinator(Options(2, 2));
  EXPECT_EQ(coordinator.state(), JobState::kGathering);
  EXPECT_EQ(coordinator.job(), nullptr);
  Join(coordinator, 1, WorkerRequest("a"));
  Join(coordinator, 2, ShardRequest(1));
  Join(coordinator, 3, ShardRequest(0));
  const auto out = Join(coordinator, 4, WorkerRequest("b"));
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
  const auto admitted = Only<AdmitMember>(out);
  ASSERT_THAT(admitted, SizeIs(4));
  EXPECT_THAT(out, SizeIs(4));
  const std::vector<std::pair<JoinId, int>> expected = {
      {1, 0}, {2, 1}, {3, 0}, {4, 1}};
  for (size_t i = 0; i < 4; ++i) {
    const Welcome& welcome = admitted[i].welcome;
    EXPECT_EQ(admitted[i].join, expected[i].first);
    EXPECT_EQ(welcome.rank, expected[i].second);
    EXPECT_EQ(welcome.job, coordinator.job());
    EXPECT_THAT(welcome.worker_addresses, ElementsAre("a:1", "b:1"));
    EXPECT_THAT(welcome.shard_addresses, ElementsAre("s0:1", "s1:1"));
    EXPECT_THAT(welcome.explanations, SizeIs(2));
  }
  const Job& job = *coordinator.job();
  EXPECT_EQ(job.id, kJobId);
  EXPECT_EQ(job.epoch, 1u);
  EXPECT_EQ(job.workers, 2);
  EXPECT_EQ(job.shards(), 2);
  EXPECT_EQ(job.layers, Model());
}

TEST(CoordinatorTest, ThePlanFollowsTheOptions) {
  for (const Scheme scheme : {Scheme::kServer, Scheme::kFactor}) {
    CoordinatorOptions options = Options(2, 1);
    options.forced_scheme = scheme;
    options.job_options.deterministic = true;
    Coordinator coordinator(options);
    Join(coordinator, 1, ShardRequest(0));
    Join(coordinator, 2, WorkerRequest("a"));
    Join(coordinator, 3, WorkerRequest("b"));
    ASSERT_EQ(coordinator.state(), JobState::kRunning);
    EXPECT_EQ(coordinator.job()->routes[0].scheme, Scheme::kServer);
    EXPECT_EQ(coordinator.job()->routes[1].scheme, scheme);
    EXPECT_EQ(coordinator.job()->options, options.job_options);
  }
}

TEST(CoordinatorTest, RanksAreTheOrderOfJoining) {
  Coordinator coordinator(Options(3, 1));
  for (const char* name : {"late", "later", "latest"}) {
    Join(coordinator, name[4], WorkerRequest(name));
  }
  const auto admitted =
      Only<AdmitMember>(Join(coordinator, 99, ShardRequest(0)));
  ASSERT_THAT(admitted, SizeIs(4));
  EXPECT_THAT(admitted[0].welcome.worker_addresses,
              ElementsAre("late:1", "later:1", "latest:1"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(admitted[rank].welcome.rank, rank);
  }
}

TEST(CoordinatorTest, ThoseWhoWaitHearWhoIsMissingAndWhoIsHere) {
  Coordinator coordinator(Options(4, 2));
  Join(coordinator, 1, WorkerRequest("a"));
  const auto out = Join(coordinator, 2, ShardRequest(1));
  ASSERT_THAT(out, SizeIs(1));
  const auto notices = Only<NotifyWaiting>(out);
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].join, 2);
  EXPECT_THAT(notices[0].text,
              AllOf(HasSubstr("job training waits for 3 of 4 workers"),
                    HasSubstr("shard 0 of 2"), Not(HasSubstr("shard 1 of 2")),
                    HasSubstr("worker 0 (a at a:1)"),
                    HasSubstr("shard 1 (s1 at s1:1)")));
}

TEST(CoordinatorTest, NoticesComeAtTheirInterval) {
  CoordinatorOptions options = Options(2, 1);
  options.waiting_notice_interval = absl::Seconds(3);
  Coordinator coordinator(options);
  Join(coordinator, 1, WorkerRequest("a"), At(0));
  Join(coordinator, 2, ShardRequest(0), At(2));
  const auto told = [&](double seconds) {
    CoordinatorOutbox out;
    coordinator.OnTick(At(seconds), out);
    std::vector<JoinId> joins;
    for (const NotifyWaiting& notice : Only<NotifyWaiting>(out)) {
      EXPECT_THAT(notice.text, HasSubstr("1 of 2 workers"));
      joins.push_back(notice.join);
    }
    EXPECT_EQ(joins.size(), out.size());
    return joins;
  };
  EXPECT_THAT(told(2.9), IsEmpty());
  EXPECT_THAT(told(3), ElementsAre(1));
  EXPECT_THAT(told(4.9), IsEmpty());
  EXPECT_THAT(told(5), ElementsAre(2));
  EXPECT_THAT(told(20), ElementsAre(1, 2));
  EXPECT_THAT(told(21), IsEmpty());
}

struct Refused {
  const char* name;
  std::function<void(JoinRequest&)> spoil;
  absl::StatusCode code;
  std::vector<const char*> parts;
};

class CoordinatorRefusalTest : public testing::TestWithParam<Refused> {};

// Worker "a" and shard 1 of two are here; "b" asks.
TEST_P(CoordinatorRefusalTest, IsRefusedAndTakesNoPlace) {
  Coordinator coordinator(Options(2, 2));
  Join(coordinator, 1, WorkerRequest("a"));
  Join(coordinator, 2, ShardRequest(1));
  JoinRequest request = WorkerRequest("b");
  GetParam().spoil(request);
  const absl::Status status = RefusalOf(coordinator, 3, request);
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const char* part : GetParam().parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  EXPECT_THAT(coordinator.Status(At(0)).members, SizeIs(2));
  // The place is still free.
  EXPECT_TRUE(RefusalOf(coordinator, 4, WorkerRequest("b")).ok());
  EXPECT_TRUE(RefusalOf(coordinator, 5, ShardRequest(0)).ok());
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
}

void BecomeShard(JoinRequest& request, int shard) {
  request.role = Role::kShard;
  request.shard = shard;
}

INSTANTIATE_TEST_SUITE_P(
    All, CoordinatorRefusalTest,
    testing::Values(
        Refused{"Version",
                [](auto& r) { r.protocol_version = 9; },
                absl::StatusCode::kFailedPrecondition,
                {"b (build test) speaks 9", "speaks 1"}},
        Refused{"Job",
                [](auto& r) { r.job = "other"; },
                absl::StatusCode::kNotFound,
                {"\"other\"", "\"training\""}},
        Refused{
            "Shape",
            [](auto& r) { r.layers[1] = FactorLayer("fc", 64, 65, true, 2); },
            absl::StatusCode::kFailedPrecondition,
            {"layer 1", "worker 0 (a at a:1)", "fc fc 64x65", "fc fc 64x64"}},
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
        Refused{"ShardTwice",
                [](auto& r) { BecomeShard(r, 1); },
                absl::StatusCode::kAlreadyExists,
                {"b says it is shard 1", "s1 at s1:1"}},
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
                {"name", "not 0"}},
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

TEST(CoordinatorTest, OneWorkerTooManyIsRefusedBeforeAndAfterTheStart) {
  Coordinator coordinator(Options(1, 1));
  Join(coordinator, 1, WorkerRequest("a"));
  for (int repeat = 0; repeat < 2; ++repeat) {
    const absl::Status status = RefusalOf(coordinator, 2, WorkerRequest("b"));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("all its 1 workers; b would be one too many"));
    Join(coordinator, 3, ShardRequest(0));
    EXPECT_EQ(coordinator.state(), JobState::kRunning);
  }
  EXPECT_EQ(RefusalOf(coordinator, 4, ShardRequest(0)).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(CoordinatorTest, ACancelledJoinFreesItsPlaceAndItsRank) {
  Coordinator coordinator(Options(2, 1));
  Join(coordinator, 1, WorkerRequest("a"));
  Join(coordinator, 2, WorkerRequest("b"));
  coordinator.OnJoinCancelled(1);
  coordinator.OnJoinCancelled(1);   // Once more does nothing,
  coordinator.OnJoinCancelled(77);  // nor does one that never was.
  Join(coordinator, 3, ShardRequest(0));
  EXPECT_EQ(coordinator.state(), JobState::kGathering);
  const auto admitted =
      Only<AdmitMember>(Join(coordinator, 4, WorkerRequest("c")));
  ASSERT_THAT(admitted, SizeIs(3));
  EXPECT_THAT(admitted[0].welcome.worker_addresses, ElementsAre("b:1", "c:1"));
  EXPECT_EQ(admitted[0].join, 2);
  EXPECT_EQ(admitted[0].welcome.rank, 0);
}

TEST(CoordinatorTest, ACancelledShardMayComeAgain) {
  Coordinator coordinator(Options(1, 2));
  Join(coordinator, 1, ShardRequest(1));
  coordinator.OnJoinCancelled(1);
  EXPECT_TRUE(RefusalOf(coordinator, 2, ShardRequest(1)).ok());
}

TEST(CoordinatorTest, WhenTheFirstWorkerIsGoneTheNextOnesModelCounts) {
  Coordinator coordinator(Options(2, 1));
  Join(coordinator, 1, WorkerRequest("a"));
  coordinator.OnJoinCancelled(1);
  JoinRequest other = WorkerRequest("b");
  other.layers = {VectorLayer("lone", 3)};
  EXPECT_TRUE(RefusalOf(coordinator, 2, other).ok());
  EXPECT_EQ(RefusalOf(coordinator, 3, WorkerRequest("c")).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(CoordinatorTest, OnceTheJobRunsACancelledJoinChangesNothing) {
  Coordinator coordinator = RunningJob(2, 1);
  coordinator.OnJoinCancelled(10);
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
  EXPECT_THAT(coordinator.Status(At(0)).members, SizeIs(3));
}

TEST(CoordinatorTest, HeartbeatsKeepTheLease) {
  Coordinator coordinator = RunningJob(1, 1);
  for (int second = 5; second <= 60; second += 5) {
    const absl::Time now = At(second);
    EXPECT_EQ(Beat(coordinator, BeatOf(PeerId::Worker(0)), now).state,
              JobState::kRunning);
    Beat(coordinator, BeatOf(PeerId::Shard(0)), now);
    Tick(coordinator, now);
  }
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
}

TEST(CoordinatorTest, ASilentMemberFailsTheJobByNameAfterTheLease) {
  Coordinator coordinator = RunningJob(2, 1);
  Beat(coordinator, BeatOf(PeerId::Worker(1), 6), At(1));
  for (const double second : {5.0, 10.0, 11.0}) {
    Beat(coordinator, BeatOf(PeerId::Worker(0), 7), At(second));
    Beat(coordinator, BeatOf(PeerId::Shard(0)), At(second));
    Tick(coordinator, At(second));  // 10 s of silence are allowed.
    EXPECT_EQ(coordinator.state(), JobState::kRunning);
  }
  Tick(coordinator, At(11.5));
  EXPECT_EQ(coordinator.state(), JobState::kFailed);
  EXPECT_THAT(coordinator.reason(),
              AllOf(HasSubstr("worker 1 (w1 at w1:1)"), HasSubstr("10.5s"),
                    HasSubstr("round 7")));
  const JobVerdict verdict =
      Beat(coordinator, BeatOf(PeerId::Worker(0)), At(12));
  EXPECT_EQ(verdict.state, JobState::kFailed);
  EXPECT_EQ(verdict.reason, coordinator.reason());
}

TEST(CoordinatorTest, TheLeaseBeginsWhenTheJobStarts) {
  Coordinator coordinator(Options(1, 1));
  Join(coordinator, 1, ShardRequest(0), At(0));
  Join(coordinator, 2, WorkerRequest("a"), At(1000));
  Tick(coordinator, At(1005));
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
}

TEST(CoordinatorTest, ALostPeerFailsTheJobWithTheFirstCause) {
  Coordinator coordinator = RunningJob(3, 1);
  Beat(coordinator, BeatOf(PeerId::Worker(2), 4), At(1));
  Heartbeat heartbeat = BeatOf(PeerId::Worker(0), 5);
  heartbeat.lost_peers = {{PeerId::Worker(2), "connection reset"}};
  EXPECT_EQ(Beat(coordinator, heartbeat, At(2)).state, JobState::kFailed);
  const std::string first = coordinator.reason();
  EXPECT_THAT(first,
              AllOf(HasSubstr("worker 2 (w2 at w2:1) is gone"),
                    HasSubstr("worker 0 lost its connection"),
                    HasSubstr("connection reset"), HasSubstr("round 5")));
  // Symptoms that follow don't replace it.
  heartbeat = BeatOf(PeerId::Worker(1));
  heartbeat.lost_peers = {{PeerId::Shard(0), "closed"}};
  EXPECT_EQ(Beat(coordinator, heartbeat, At(3)).reason, first);
  Tick(coordinator, At(100));
  coordinator.Fail("something else");
  EXPECT_EQ(coordinator.reason(), first);
}

TEST(CoordinatorTest, LosingOneWhoHasLeftIsNoFailure) {
  Coordinator coordinator = RunningJob(2, 1);
  Leave(coordinator, PeerId::Worker(1));
  Heartbeat heartbeat = BeatOf(PeerId::Worker(0));
  heartbeat.lost_peers = {{PeerId::Worker(1), "closed by the peer"},
                          {PeerId::Worker(55), "never was"}};
  EXPECT_EQ(Beat(coordinator, heartbeat, At(1)).state, JobState::kRunning);
  // Nor need it send heartbeats any more.
  Beat(coordinator, BeatOf(PeerId::Shard(0)), At(20));
  Beat(coordinator, BeatOf(PeerId::Worker(0)), At(20));
  Tick(coordinator, At(21));
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
}

TEST(CoordinatorTest, FinishesWhenAllWorkersHaveLeft) {
  Coordinator coordinator = RunningJob(2, 2);
  Leave(coordinator, PeerId::Worker(1));
  Leave(coordinator, PeerId::Worker(1));  // Retried.
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
  Leave(coordinator, PeerId::Worker(0));
  EXPECT_EQ(coordinator.state(), JobState::kFinished);
  EXPECT_FALSE(coordinator.everyone_knows());

  // All have to hear it, those who have left too: they wait for the others.
  for (const PeerId member : {PeerId::Shard(0), PeerId::Worker(1),
                              PeerId::Shard(1), PeerId::Worker(0)}) {
    EXPECT_FALSE(coordinator.everyone_knows());
    EXPECT_EQ(Beat(coordinator, BeatOf(member), At(1)).state,
              JobState::kFinished);
  }
  EXPECT_TRUE(coordinator.everyone_knows());

  // It stays finished.
  coordinator.Fail("too late");
  Tick(coordinator, At(1000));
  EXPECT_EQ(coordinator.state(), JobState::kFinished);
  EXPECT_EQ(coordinator.reason(), "");
  EXPECT_EQ(RefusalOf(coordinator, 50, WorkerRequest("late")).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(CoordinatorTest, EveryoneKnowsOfAFailureOnceAllHaveHeard) {
  Coordinator coordinator = RunningJob(2, 1);
  coordinator.Fail("stopped by hand");
  EXPECT_EQ(coordinator.state(), JobState::kFailed);
  EXPECT_FALSE(coordinator.everyone_knows());
  for (const PeerId member :
       {PeerId::Worker(0), PeerId::Worker(1), PeerId::Shard(0)}) {
    EXPECT_FALSE(coordinator.everyone_knows());
    EXPECT_EQ(Beat(coordinator, BeatOf(member), At(1)).reason,
              "stopped by hand");
  }
  EXPECT_TRUE(coordinator.everyone_knows());
}

TEST(CoordinatorTest, AFailedJobTakesNobodyAndSaysWhy) {
  Coordinator coordinator(Options(2, 1));
  coordinator.Fail("stopped by hand");
  const absl::Status status = RefusalOf(coordinator, 1, WorkerRequest("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stopped by hand"));
}

TEST(CoordinatorTest, HeartbeatsOfOthersAreRefused) {
  Coordinator coordinator = RunningJob(1, 1);
  Heartbeat heartbeat = BeatOf(PeerId::Worker(0));
  heartbeat.job = 1;
  absl::Status status = coordinator.OnHeartbeat(heartbeat, At(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("job 1 "), HasSubstr("job 4711 ")));
  heartbeat = BeatOf(PeerId::Worker(0));
  heartbeat.epoch = 2;
  status = coordinator.OnHeartbeat(heartbeat, At(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("epoch 2"), HasSubstr("epoch 1")));
  for (const PeerId stranger : {PeerId::Worker(1), PeerId::Shard(1)}) {
    status = coordinator.OnHeartbeat(BeatOf(stranger), At(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(PeerName(stranger)));
    EXPECT_EQ(coordinator.OnLeave(kJobId, 1, stranger).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(coordinator.OnLeave(kJobId, 2, PeerId::Worker(0)).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(coordinator.state(), JobState::kRunning);
}

TEST(CoordinatorTest, BeforeTheStartThereAreNoMembersToBeat) {
  Coordinator coordinator(Options(2, 1));
  Join(coordinator, 1, WorkerRequest("a"));
  EXPECT_EQ(
      coordinator.OnHeartbeat(BeatOf(PeerId::Worker(0)), At(1)).status().code(),
      absl::StatusCode::kFailedPrecondition);
}

TEST(CoordinatorTest, StatusWhileGatheringSaysWhoIsMissing) {
  Coordinator coordinator(Options(2, 1));
  Join(coordinator, 1, WorkerRequest("a"), At(0));
  const JobStatus status = coordinator.Status(At(4));
  EXPECT_EQ(status.job, "training");
  EXPECT_EQ(status.id, kJobId);
  EXPECT_EQ(status.epoch, 0u);
  EXPECT_EQ(status.state, JobState::kGathering);
  EXPECT_THAT(status.waiting,
              AllOf(HasSubstr("1 of 2 workers"), HasSubstr("shard 0 of 1")));
  EXPECT_EQ(status.workers, 2);
  EXPECT_EQ(status.shards, 1);
  ASSERT_THAT(status.members, SizeIs(1));
  EXPECT_EQ(status.members[0].id, PeerId::Worker(0));
  EXPECT_EQ(status.members[0].since_heartbeat, absl::Seconds(4));
}

TEST(CoordinatorTest, StatusShowsWorkersByRankThenShards) {
  Coordinator coordinator = RunningJob(2, 2);
  Beat(coordinator, BeatOf(PeerId::Worker(1), 9), At(3));
  Heartbeat heartbeat = BeatOf(PeerId::Shard(1));
  heartbeat.stored_bytes = 123;
  heartbeat.chunks = 4;
  Beat(coordinator, heartbeat, At(2));
  Leave(coordinator, PeerId::Worker(0));
  const JobStatus status = coordinator.Status(At(5));
  EXPECT_EQ(status.epoch, 1u);
  EXPECT_EQ(status.state, JobState::kRunning);
  EXPECT_EQ(status.waiting, "");
  ASSERT_THAT(status.members, SizeIs(4));
  const PeerId expected[] = {PeerId::Worker(0), PeerId::Worker(1),
                             PeerId::Shard(0), PeerId::Shard(1)};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(status.members[i].id, expected[i]);
  EXPECT_TRUE(status.members[0].left);
  EXPECT_EQ(status.members[1].round, 9);
  EXPECT_EQ(status.members[1].name, "w1");
  EXPECT_EQ(status.members[1].data_address, "w1:1");
  EXPECT_EQ(status.members[1].since_heartbeat, absl::Seconds(2));
  EXPECT_FALSE(status.members[1].left);
  EXPECT_EQ(status.members[3].stored_bytes, 123);
  EXPECT_EQ(status.members[3].chunks, 4);
  EXPECT_EQ(status.members[3].since_heartbeat, absl::Seconds(3));
}

struct BadOptions {
  const char* name;
  std::function<void(CoordinatorOptions&)> spoil;
  const char* message;
};

class CoordinatorOptionsTest : public testing::TestWithParam<BadOptions> {};

TEST_P(CoordinatorOptionsTest, IsRefusedWithItsValue) {
  CoordinatorOptions options = Options(2, 2);
  ASSERT_TRUE(options.Validate().ok()) << options.Validate();
  GetParam().spoil(options);
  const absl::Status status = options.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, CoordinatorOptionsTest,
    testing::Values(
        BadOptions{"Job", [](auto& o) { o.job = "a b"; }, "job name"},
        BadOptions{"NoJob", [](auto& o) { o.job.clear(); }, "job name"},
        BadOptions{"Workers", [](auto& o) { o.workers = 0; }, "workers is 0"},
        BadOptions{"TooManyWorkers", [](auto& o) { o.workers = 65537; },
                   "workers is 65537"},
        BadOptions{"Shards", [](auto& o) { o.shards = -1; }, "servers is -1"},
        BadOptions{"Lease", [](auto& o) { o.lease = absl::Milliseconds(999); },
                   "lease is 999ms"},
        BadOptions{
            "Notice",
            [](auto& o) { o.waiting_notice_interval = absl::ZeroDuration(); },
            "waiting_notice_interval"},
        BadOptions{"Optimizer",
                   [](auto& o) { o.job_options.optimizer.beta1 = 2.0f; },
                   "beta1 is 2"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CoordinatorTest, AnAbsurdRoundInAHeartbeatDoesNotOverflow) {
  Coordinator coordinator(Options(1, 1));
  CoordinatorOutbox out;
  coordinator.OnJoin(1, WorkerRequest("w"), absl::UnixEpoch(), out);
  coordinator.OnJoin(2, ShardRequest(0), absl::UnixEpoch(), out);
  Heartbeat heartbeat;
  heartbeat.job = Options(1, 1).job_id;
  heartbeat.epoch = 1;
  heartbeat.member = PeerId::Worker(0);
  heartbeat.round = INT64_MAX;
  (void)coordinator.OnHeartbeat(heartbeat, absl::UnixEpoch());
  coordinator.OnTick(absl::UnixEpoch() + absl::Seconds(60), out);
  EXPECT_THAT(coordinator.reason(), testing::Not(HasSubstr("round -")));
}

TEST(CoordinatorTest, HostileTextIsNotRepeatedAsItIs) {
  for (const int field : {0, 1, 2}) {
    Coordinator coordinator(Options(1, 1));
    JoinRequest request = WorkerRequest("w");
    const std::string hostile = "\x1b[31m\nI 2026 forged log line";
    if (field == 0) request.protocol_version = 9;
    if (field == 0) request.name = hostile;
    if (field == 1) request.protocol_version = 9;
    if (field == 1) request.build = hostile;
    if (field == 2) request.job = hostile;
    CoordinatorOutbox out;
    coordinator.OnJoin(1, request, absl::UnixEpoch(), out);
    const auto& refused = std::get<RefuseJoin>(out.at(0));
    EXPECT_EQ(refused.why.message().find('\n'), absl::string_view::npos)
        << "field " << field;
  }
}

TEST(CoordinatorTest, AFailureWhileGatheringAnswersThoseWhoWait) {
  Coordinator coordinator(Options(1, 1));
  CoordinatorOutbox out;
  coordinator.OnJoin(1, WorkerRequest("w"), absl::UnixEpoch(), out);
  out.clear();
  coordinator.Fail("stopped by hand");
  coordinator.OnTick(absl::UnixEpoch() + absl::Seconds(60), out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<RefuseJoin>(out[0]));
}

}  // namespace
}  // namespace nereus
