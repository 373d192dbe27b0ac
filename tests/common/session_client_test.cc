// The session of a member with a real coordinator, over loopback. Leases and
// intervals are those of a job, so the tests take real time. A test that
// expects no event waits for a second or two.

#include "common/rpc/session_client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/rpc/admin_client.h"
#include "common/rpc/control_channel.h"
#include "common/rpc/control_server.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/process/coordinator_service.h"
#include "server/process/redirect_service.h"
#include "tests/testing/held_port.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tcp_relay.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Upper bound of each wait: more than any wait takes, even on a slow machine
// under a sanitizer.
constexpr absl::Duration kPatience = absl::Minutes(2);

JoinRequest WorkerJoin() {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = "test";
  request.job = "digits";
  request.role = Role::kWorker;
  static std::atomic<uint64_t> processes{0};
  request.incarnation = ++processes;
  request.name = "worker:1";
  request.data_address = "127.0.0.1:1001";
  request.layers = {VectorLayer("scale", 100)};
  return request;
}

JoinRequest ShardJoin() {
  JoinRequest request = WorkerJoin();
  request.role = Role::kShard;
  request.name = "shard:1";
  request.data_address = "127.0.0.1:1002";
  request.layers.clear();
  return request;
}

CoordinatorOptions TestOptions() {
  CoordinatorOptions options;
  options.spec.name = "digits";
  options.job_id = 77;
  // Members send a heartbeat each second: only a process that stands still
  // misses a lease.
  options.spec.lease_seconds = 10;
  options.reconnect_grace = absl::Seconds(10);
  return options;
}

// A coordinator with its control port.
class TestCoordinator {
 public:
  explicit TestCoordinator(const CoordinatorOptions& options = TestOptions(),
                           int port = 0)
      : service_(options, std::nullopt, CoordinatorDisk()),
        server_(*ControlServer::Start("127.0.0.1", port, service_.services())) {
  }
  ~TestCoordinator() {
    service_.EndSessions();
    server_.reset();
  }

  int port() const { return server_->port(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port()); }

  JobStatus Status() const {
    const auto status = FetchJobStatus(address(), kPatience);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? *status : JobStatus();
  }

  // Returns a member as the coordinator's status shows it.
  std::optional<JobStatus::Member> Find(PeerId id) const {
    for (const JobStatus::Member& member : Status().members) {
      if (member.id == id) return member;
    }
    return std::nullopt;
  }

 private:
  CoordinatorService service_;
  std::unique_ptr<ControlServer> server_;
};

// A process's use of its session: it joins, or resumes if it has an epoch, and
// stops at the end of the membership.
class TestMember {
 public:
  TestMember(const std::string& address, JoinRequest request,
             SessionClientOptions options = {})
      : request_(std::move(request)) {
    options.coordinator_address = address;
    SessionClient::Events events;
    events.opened = [this] { OnOpened(); };
    events.message = [this](const auto& message) { OnMessage(message); };
    events.heartbeat = [this] { return OnHeartbeat(); };
    events.failed = [this](const absl::Status& why) {
      MutexLock lock(&mu_);
      failed_ = why;
    };
    client_ = std::make_unique<SessionClient>(options, std::move(events));
  }

  void Start() { client_->Start(); }
  void Send(const MemberMessage& message) { client_->Send(message); }
  void set_round(int64_t round) {
    MutexLock lock(&mu_);
    heartbeat_.round = round;
  }

  // Runs instead of the join or resumption.
  std::function<void(SessionClient&)> when_opened;

  int opened() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return opened_;
  }
  int heartbeats() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return heartbeats_;
  }

  bool AwaitOpened(int count) {
    return Await(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return opened_ >= count; });
  }

  // Returns the reason for which the client gave up.
  absl::Status AwaitFailure() {
    Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return failed_.has_value();
    });
    MutexLock lock(&mu_);
    return failed_.value_or(DeadlineExceededError("it did not fail"));
  }
  bool failed() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return failed_.has_value();
  }

  // Returns the first message of this type; nothing if none comes in time.
  template <typename Message>
  std::optional<Message> AwaitMessage() ABSL_LOCKS_EXCLUDED(mu_) {
    std::optional<Message> found;
    Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      for (const CoordinatorMessage& message : messages_) {
        if (const auto* that = std::get_if<Message>(&message)) found = *that;
        if (found.has_value()) return true;
      }
      return false;
    });
    return found;
  }

 private:
  template <typename Condition>
  bool Await(Condition condition) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(condition, kPatience);
  }

  void OnOpened() ABSL_LOCKS_EXCLUDED(mu_) {
    std::optional<EpochStart> start;
    {
      MutexLock lock(&mu_);
      ++opened_;
      start = start_;
    }
    if (when_opened) {
      when_opened(*client_);
    } else if (start.has_value()) {
      client_->Send(Resume{start->job->id, start->self, request_.incarnation,
                           start->job->epoch});
    } else {
      client_->Send(request_);
    }
  }

  void OnMessage(const CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mu_) {
    const bool over = std::holds_alternative<Refusal>(message) ||
                      std::holds_alternative<JobOver>(message);
    if (over) client_->Stop();
    MutexLock lock(&mu_);
    messages_.push_back(message);
    if (const auto* start = std::get_if<EpochStart>(&message)) start_ = *start;
  }

  Heartbeat OnHeartbeat() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    ++heartbeats_;
    return heartbeat_;
  }

  const JoinRequest request_;

  Mutex mu_;
  int opened_ ABSL_GUARDED_BY(mu_) = 0;
  int heartbeats_ ABSL_GUARDED_BY(mu_) = 0;
  Heartbeat heartbeat_ ABSL_GUARDED_BY(mu_);
  std::vector<CoordinatorMessage> messages_ ABSL_GUARDED_BY(mu_);
  std::optional<EpochStart> start_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> failed_ ABSL_GUARDED_BY(mu_);

  // Must be last: it uses all members above.
  std::unique_ptr<SessionClient> client_;
};

// Waits until `done` returns true; false if this takes too long.
bool AskUntil(const std::function<bool()>& done) {
  const absl::Time deadline = SteadyNow() + kPatience;
  while (!done()) {
    if (SteadyNow() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

// A job of one worker and one shard. Each has one direct address of the
// coordinator and one through `relay`.
class SessionTest : public testing::Test {
 protected:
  void StartJob(SessionClientOptions worker_options = {}) {
    relay_ = std::make_unique<TcpRelay>(coordinator_.port());
    shard_ = std::make_unique<TestMember>(coordinator_.address(), ShardJoin());
    worker_ =
        std::make_unique<TestMember>(absl::StrCat("127.0.0.1:", relay_->port()),
                                     WorkerJoin(), worker_options);
    shard_->Start();
    worker_->Start();
    ASSERT_TRUE(worker_->AwaitMessage<EpochStart>().has_value());
    ASSERT_TRUE(shard_->AwaitMessage<EpochStart>().has_value());
  }

  // Waits until the coordinator has heard of a round in a heartbeat.
  bool ReportRound(int64_t round) {
    worker_->set_round(round);
    return AskUntil([&] {
      const auto worker = coordinator_.Find(PeerId::Worker(0));
      return worker.has_value() && worker->round == round;
    });
  }

  TestCoordinator coordinator_;
  std::unique_ptr<TcpRelay> relay_;
  std::unique_ptr<TestMember> shard_;
  std::unique_ptr<TestMember> worker_;
};

TEST_F(SessionTest, MembersJoinAndGetTheEpoch) {
  StartJob();
  const auto start = worker_->AwaitMessage<EpochStart>();
  EXPECT_EQ(start->self, PeerId::Worker(0));
  EXPECT_EQ(start->job->id, 77u);
  EXPECT_EQ(start->job->epoch, 1u);
  EXPECT_EQ(start->job->layers, WorkerJoin().layers);
  EXPECT_EQ(start->explanations.size(), 1u);
  ASSERT_EQ(start->epoch_members.size(), 2u);
  for (const EpochMember& each : start->epoch_members) {
    const bool worker = each.id == PeerId::Worker(0);
    EXPECT_TRUE(worker || each.id == PeerId::Shard(0));
    EXPECT_EQ(each.data_address, worker ? "127.0.0.1:1001" : "127.0.0.1:1002");
  }
  EXPECT_EQ(shard_->AwaitMessage<EpochStart>()->self, PeerId::Shard(0));
  EXPECT_EQ(coordinator_.Status().state, JobState::kRunning);

  worker_->Send(Leave{});
  EXPECT_EQ(worker_->AwaitMessage<JobOver>()->state, JobState::kFinished);
  EXPECT_EQ(shard_->AwaitMessage<JobOver>()->state, JobState::kFinished);
  // The members have stopped; the end of their sessions is no failure.
  EXPECT_EQ(worker_->opened(), 1);
  EXPECT_FALSE(worker_->failed());
}

TEST(SessionClientTest, WaitingMemberLearnsTheReason) {
  CoordinatorOptions options = TestOptions();
  options.spec.workers = 2;
  options.waiting_notice_interval = absl::Milliseconds(100);
  TestCoordinator coordinator(options);
  TestMember shard(coordinator.address(), ShardJoin());
  shard.Start();
  const auto waiting = shard.AwaitMessage<Waiting>();
  ASSERT_TRUE(waiting.has_value());
  EXPECT_THAT(waiting->text, HasSubstr("waits for 2 more workers (2 needed)"));
}

// A driver thread that was late hears of two sessions when the second one is
// already open, and joins for each. The coordinator would refuse the process.
TEST(SessionClientTest, SecondJoinInASessionIsNotSent) {
  TestCoordinator coordinator;
  const JoinRequest request = ShardJoin();
  TestMember shard(coordinator.address(), request);
  shard.when_opened = [&](SessionClient& client) {
    client.Send(request);
    client.Send(request);
  };
  TestMember worker(coordinator.address(), WorkerJoin());
  shard.Start();
  worker.Start();
  EXPECT_TRUE(worker.AwaitMessage<EpochStart>().has_value());
  EXPECT_TRUE(shard.AwaitMessage<EpochStart>().has_value());
}

TEST_F(SessionTest, BrokenSessionIsOpenedAgainAndResumed) {
  StartJob();
  for (int life = 2; life <= 4; ++life) {
    relay_->Break();
    ASSERT_TRUE(worker_->AwaitOpened(life));
    ASSERT_TRUE(ReportRound(life));
  }
  EXPECT_EQ(coordinator_.Status().epoch, 1u) << "nobody has died";
  // The session carries messages in both directions.
  worker_->Send(LostPeer{1, PeerId::Shard(0), "reset"});
  const auto prepare = worker_->AwaitMessage<PrepareEpoch>();
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(prepare->target, 2u);
  EXPECT_FALSE(worker_->failed());
}

// The patience starts at the end of a session. In a quiet job the coordinator
// sends nothing, and in a resumed session it sends nothing from the start.
TEST_F(SessionTest, LongQuietSessionIsResumed) {
  SessionClientOptions options;
  options.patience = absl::Seconds(3);
  StartJob(options);
  for (int life = 2; life <= 3; ++life) {
    // The session is quiet for at least this long.
    absl::SleepFor(options.patience + absl::Seconds(1));
    relay_->Break();
    ASSERT_TRUE(worker_->AwaitOpened(life));
    ASSERT_TRUE(ReportRound(life));
  }
  EXPECT_FALSE(worker_->failed());
}

TEST_F(SessionTest, LostCoordinatorIsGivenUpAfterThePatience) {
  // Time for many attempts: they come after 50, 100, 200, ... milliseconds.
  SessionClientOptions options;
  options.patience = absl::Seconds(4);
  StartJob(options);
  const absl::Time before = SteadyNow();
  relay_->Close();
  const absl::Status why = worker_->AwaitFailure();
  EXPECT_GE(SteadyNow() - before, options.patience);
  EXPECT_THAT(why, IsUnavailable(absl::StrCat(
                       "no coordinator answers at 127.0.0.1:", relay_->port(),
                       " for 4s")));
  EXPECT_GE(worker_->opened(), 3) << "it has tried";
}

// The end of its session reveals a dead process before its lease ends.
TEST(SessionClientTest, EndOfTheClientEndsTheMembership) {
  CoordinatorOptions options = TestOptions();
  options.spec.workers = 2;
  options.spec.lease_seconds = 3600;
  options.reconnect_grace = absl::Milliseconds(100);
  TestCoordinator coordinator(options);
  TestMember shard(coordinator.address(), ShardJoin());
  TestMember stays(coordinator.address(), WorkerJoin());
  JoinRequest another = WorkerJoin();
  another.name = "worker:2";
  auto goes = std::make_unique<TestMember>(coordinator.address(), another);
  for (TestMember* member : {&shard, &stays, goes.get()}) member->Start();
  ASSERT_TRUE(goes->AwaitMessage<EpochStart>().has_value());
  const auto start = stays.AwaitMessage<EpochStart>();
  ASSERT_TRUE(start.has_value());
  goes.reset();
  const auto prepare = stays.AwaitMessage<PrepareEpoch>();
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(coordinator.Status().members.size(), 2u);
}

TEST_F(SessionTest, RefusalsArriveWithTheirCode) {
  StartJob();
  const auto other = [](const std::function<void(JoinRequest&)>& change) {
    JoinRequest request = WorkerJoin();
    change(request);
    return request;
  };
  const struct {
    absl::StatusCode code;
    const char* text;
    MemberMessage first;
  } kCases[] = {
      {absl::StatusCode::kFailedPrecondition, "protocol version differs",
       other([](auto& request) { request.protocol_version = 99; })},
      {absl::StatusCode::kNotFound, "asks for job \"letters\"",
       other([](auto& request) { request.job = "letters"; })},
      {absl::StatusCode::kInvalidArgument, "data address",
       other([](auto& request) { request.data_address = "two words"; })},
      {absl::StatusCode::kAlreadyExists, "says it is shard 0, which is shard:1",
       ShardJoin()},
      {absl::StatusCode::kResourceExhausted, "has all its 1 workers",
       other([](auto& request) { request.name = "worker:2"; })},
      {absl::StatusCode::kAlreadyExists, "is the name of a worker at",
       WorkerJoin()},
      {absl::StatusCode::kDataLoss, "does not know the job",
       Resume{76, PeerId::Worker(0), 1, 1}},
      {absl::StatusCode::kCancelled, "counted as dead",
       Resume{77, PeerId::Worker(0), 12345, 1}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    TestMember member(coordinator_.address(), JoinRequest());
    member.when_opened = [&](SessionClient& client) { client.Send(c.first); };
    member.Start();
    const auto refusal = member.AwaitMessage<Refusal>();
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->why.code(), c.code);
    EXPECT_THAT(std::string(refusal->why.message()), HasSubstr(c.text));
    EXPECT_FALSE(member.failed());
  }
  EXPECT_EQ(coordinator_.Status().epoch, 1u);
  EXPECT_EQ(coordinator_.Status().members.size(), 2u);
}

TEST_F(SessionTest, MemberWithImpossibleNumbersIsRemoved) {
  StartJob();
  Heartbeat heartbeat;
  heartbeat.round = -7;
  worker_->Send(heartbeat);
  const auto refusal = worker_->AwaitMessage<Refusal>();
  ASSERT_TRUE(refusal.has_value());
  EXPECT_THAT(refusal->why, IsError(absl::StatusCode::kCancelled,
                                    "a member reports the round -7"));
}

// The threads of a process do not know yet that a session is new. Their
// messages belong to the previous session.
TEST(SessionClientTest, NoMessageIsSentBeforeTheJoin) {
  TestCoordinator coordinator;
  TestMember shard(coordinator.address(), ShardJoin());
  shard.when_opened = [](SessionClient& client) {
    client.Send(LostPeer{1, PeerId::Worker(0), "reset"});
    client.Send(EpochReport());
    client.Send(Leave());
  };
  TestMember worker(coordinator.address(), WorkerJoin());
  shard.Start();
  worker.Start();
  ASSERT_TRUE(worker.AwaitOpened(1));
  ASSERT_TRUE(shard.AwaitOpened(1));
  // The shard sends no heartbeats either, while the worker sends some.
  ASSERT_TRUE(AskUntil([&] { return worker.heartbeats() >= 2; }));
  EXPECT_EQ(shard.heartbeats(), 0);
  shard.Send(ShardJoin());
  EXPECT_TRUE(shard.AwaitMessage<EpochStart>().has_value());
  EXPECT_TRUE(AskUntil([&] { return shard.heartbeats() >= 1; }));
  EXPECT_EQ(shard.opened(), 1);
}

TEST(SessionClientTest, UnreachableCoordinatorIsAFailureAfterTheTimeout) {
  const HeldPort nowhere;
  SessionClientOptions options;
  options.connect_timeout = absl::Seconds(1);
  options.patience = absl::ZeroDuration();
  TestMember member(nowhere.address(), WorkerJoin(), options);
  const absl::Time before = SteadyNow();
  member.Start();
  const absl::Status why = member.AwaitFailure();
  EXPECT_GE(SteadyNow() - before, options.connect_timeout);
  EXPECT_THAT(why, IsUnavailable(absl::StrCat("no coordinator answers at ",
                                              nowhere.address(), " for 1s")));
}

TEST(SessionClientTest, ControlPortWithoutACoordinatorIsRecognised) {
  const auto server = ControlServer::Start("127.0.0.1", 0, {});
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*server)->port());
  TestMember member(address, WorkerJoin());
  member.Start();
  const absl::Status why = member.AwaitFailure();
  EXPECT_EQ(why.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr(address),
                    HasSubstr("this is not a coordinator's control port")));
  EXPECT_EQ(member.opened(), 1) << "trying again would not help";
}

TEST(SessionClientTest, OtherShardNamesTheCoordinator) {
  RedirectService service("10.0.0.1:4700");
  const auto server = ControlServer::Start("127.0.0.1", 0, service.services());
  ASSERT_TRUE(server.ok()) << server.status();
  TestMember member(absl::StrCat("127.0.0.1:", (*server)->port()),
                    WorkerJoin());
  member.Start();
  EXPECT_THAT(member.AwaitFailure(), IsFailedPrecondition("10.0.0.1:4700"));
}

TEST(SessionClientTest, ClientMayBeDestroyedAtAnyTime) {
  TestCoordinator coordinator;
  const HeldPort nowhere;
  // A destructor that waited for an attempt's end would hang the test.
  SessionClientOptions options;
  options.connect_timeout = absl::Hours(24);
  for (const std::string& address :
       {coordinator.address(), nowhere.address()}) {
    { TestMember never_started(address, WorkerJoin(), options); }
    for (int i = 0; i < 20; ++i) {
      TestMember member(address, WorkerJoin(), options);
      member.Start();
      if (i % 2 == 0) {
        ASSERT_TRUE(member.AwaitOpened(1));
      }
    }
  }
}

// Accepts each session, and sends one message without content.
class OtherCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status Attend(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::MemberMessage>*
          session) override {
    context->AddInitialMetadata(kSessionHeader, "open");
    session->Write(v1::CoordinatorMessage());
    v1::MemberMessage message;
    while (session->Read(&message)) {
    }
    return grpc::Status::OK;
  }
};

// In each further session the coordinator would send the message again.
TEST(UnreadMessageTest, MessageThatIsNotKnownEndsTheMembership) {
  OtherCoordinator coordinator;
  const auto server = ControlServer::Start("127.0.0.1", 0, {&coordinator});
  ASSERT_TRUE(server.ok()) << server.status();
  SessionClientOptions options;
  options.coordinator_address = absl::StrCat("127.0.0.1:", (*server)->port());
  std::promise<absl::Status> failed;
  SessionClient::Events events;
  events.opened = [] {};
  events.message = [](const CoordinatorMessage&) { ADD_FAILURE(); };
  events.heartbeat = [] { return std::optional<Heartbeat>(); };
  events.failed = [&](const absl::Status& why) { failed.set_value(why); };
  SessionClient client(options, std::move(events));
  client.Start();
  EXPECT_THAT(
      failed.get_future().get(),
      IsInvalidArgument("sent a message that this version does not know"));
}

}  // namespace
}  // namespace nereus
