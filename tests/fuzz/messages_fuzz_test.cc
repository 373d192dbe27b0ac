// Hostile control messages: bytes that parse as Protobuf, converted to the
// plain structs. Two seconds for each kind of message by default; longer:
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/messages_fuzz_test
//
// and best from a build with --config=asan or ubsan. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/rpc/messages.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

std::vector<LayerSpec> SomeLayers() {
  return {VectorLayer("scale", 8), FactorLayer("fc", 64, 32, true, 4)};
}

v1::JoinRequest SomeJoin() {
  JoinRequest request;
  request.protocol_version = 1;
  request.build = "0.1.0";
  request.job = "training";
  request.name = "host:1";
  request.data_address = "host:2";
  request.layers = SomeLayers();
  return ToProto(request);
}

v1::Welcome SomeWelcome() {
  Welcome welcome;
  welcome.rank = 1;
  welcome.job = TestJob(2, 2, SomeLayers(), {}, Scheme::kFactor);
  welcome.explanations = {{10, std::nullopt, "no factors"}, {20, 30, "fewer"}};
  welcome.worker_addresses = {"a:1", "b:1"};
  welcome.shard_addresses = {"c:1", "d:1"};
  return ToProto(welcome);
}

v1::HeartbeatRequest SomeHeartbeat() {
  Heartbeat heartbeat;
  heartbeat.job = 77;
  heartbeat.epoch = 5;
  heartbeat.member = PeerId::Shard(1);
  heartbeat.round = 12;
  heartbeat.stored_bytes = 1000;
  heartbeat.chunks = 3;
  heartbeat.lost_peers = {{PeerId::Worker(0), "reset"}};
  return ToProto(heartbeat);
}

v1::GetStatusResponse SomeStatus() {
  JobStatus status;
  status.job = "training";
  status.id = 77;
  status.epoch = 1;
  status.state = JobState::kRunning;
  status.workers = 2;
  status.shards = 1;
  JobStatus::Member member;
  member.id = PeerId::Worker(1);
  member.name = "host:1";
  member.data_address = "host:2";
  member.since_heartbeat = absl::Seconds(1.5);
  status.members = {member};
  return ToProto(status);
}

v1::HeartbeatResponse SomeVerdict() {
  return ToProto(JobVerdict{JobState::kFailed, "worker 1 is gone"});
}

void ExpectRank(PeerId peer) {
  ASSERT_GE(peer.rank, 0);
  ASSERT_LT(peer.rank, kRanksMax);
}

// What holds for every struct that a conversion has let through.
void CheckConverted(const JoinRequest& request) {
  ASSERT_LE(request.layers.size(), static_cast<size_t>(kLayersMax));
}
void CheckConverted(const Welcome& welcome) {
  const Job& job = *welcome.job;
  ASSERT_TRUE(ValidateLayers(job.layers).ok());
  ASSERT_EQ(job.routes.size(), job.layers.size());
  ASSERT_EQ(welcome.explanations.size(), job.layers.size());
  ASSERT_TRUE(job.options.optimizer.Validate().ok());
  ASSERT_EQ(welcome.worker_addresses.size(), static_cast<size_t>(job.workers));
  ASSERT_EQ(welcome.shard_addresses.size(), static_cast<size_t>(job.shards()));
  for (size_t i = 0; i < job.layers.size(); ++i) {
    ASSERT_TRUE(SupportsScheme(job.layers[i], job.routes[i].scheme));
  }
  for (const Chunk& chunk : job.placement.chunks()) {
    ASSERT_LT(chunk.shard, job.shards());
  }
  ASSERT_GE(welcome.rank, 0);
  ASSERT_LT(welcome.rank, std::max(job.workers, job.shards()));
}
void CheckConverted(const Heartbeat& heartbeat) {
  ExpectRank(heartbeat.member);
  for (const auto& lost : heartbeat.lost_peers) ExpectRank(lost.peer);
}
void CheckConverted(const JobStatus& status) {
  ASSERT_NE(JobStateName(status.state), "unknown");
  for (const auto& member : status.members) ExpectRank(member.id);
}
void CheckConverted(const JobVerdict& verdict) {
  ASSERT_NE(JobStateName(verdict.state), "unknown");
}

// Converted structs are equal to what their own messages convert to: compared
// as messages, whose bytes are the same for equal contents.
template <typename Message>
void CheckOne(const Message& message, uint64_t& accepted) {
  const auto converted = FromProto(message);
  if (!converted.ok()) {
    ASSERT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument);
    ASSERT_FALSE(converted.status().message().empty());
    return;
  }
  ++accepted;
  CheckConverted(*converted);
  const Message first = ToProto(*converted);
  const auto again = FromProto(first);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(ToProto(*again).SerializeAsString(), first.SerializeAsString());
}

template <typename Message>
void Fuzz(const Message& sound) {
  // Text that is no UTF-8 is refused by the parser, which would log each time.
  const google::protobuf::LogSilencer silencer;
  const std::string valid = sound.SerializeAsString();
  FuzzBudget budget;
  uint64_t accepted = 0;
  CheckOne(sound, accepted);
  ASSERT_EQ(accepted, 1u) << "the unspoilt message is refused";
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 50; ++i) {
      std::string bytes =
          random.Chance(0.05) ? RandomBytes(random, random.Below(64)) : valid;
      Mutate(random, bytes);
      Message message;
      if (!message.ParseFromString(bytes)) continue;
      CheckOne(message, accepted);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

TEST(MessagesFuzzTest, JoinRequest) { Fuzz(SomeJoin()); }
TEST(MessagesFuzzTest, Welcome) { Fuzz(SomeWelcome()); }
TEST(MessagesFuzzTest, Heartbeat) { Fuzz(SomeHeartbeat()); }
TEST(MessagesFuzzTest, HeartbeatResponse) { Fuzz(SomeVerdict()); }
TEST(MessagesFuzzTest, Status) { Fuzz(SomeStatus()); }

// Well-formed messages whose numbers are where limits lie.
TEST(MessagesFuzzTest, WelcomesWithExtremeNumbers) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    uint64_t accepted = 0;
    for (int i = 0; i < 20; ++i) {
      v1::Welcome message = SomeWelcome();
      v1::Job& job = *message.mutable_job();
      v1::LayerSpec& layer = *job.mutable_layers(random.Below(2));
      const uint64_t value = EdgeNumber(random);
      const auto number = static_cast<int64_t>(value);
      const auto word = static_cast<int32_t>(value);
      switch (random.Below(9)) {
        case 0:
          message.set_rank(word);
          break;
        case 1:
          job.set_workers(word);
          break;
        case 2:
          job.set_shards(word);
          break;
        case 3:
          layer.set_m(number);
          break;
        case 4:
          layer.set_n(number);
          break;
        case 5:
          // Thousands of chunks are enough for a test.
          layer.set_parameters(std::min<int64_t>(number, int64_t{1} << 33));
          break;
        case 6:
          layer.set_rows(number);
          break;
        case 7:
          layer.set_kind(static_cast<v1::LayerSpec::Kind>(word));
          break;
        default:
          job.mutable_routes(random.Below(2))
              ->set_scheme(static_cast<v1::Route::Scheme>(word));
      }
      CheckOne(message, accepted);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

// Counts beyond the limits, each by one.
TEST(MessagesFuzzTest, TooManyLayersAreRefused) {
  v1::JoinRequest join = SomeJoin();
  join.clear_layers();
  for (int64_t i = 0; i < kLayersMax; ++i) {
    v1::LayerSpec& layer = *join.add_layers();
    layer.set_kind(v1::LayerSpec::KIND_VECTOR);
  }
  EXPECT_TRUE(FromProto(join).ok());
  join.add_layers()->set_kind(v1::LayerSpec::KIND_VECTOR);
  EXPECT_EQ(FromProto(join).status().code(),
            absl::StatusCode::kInvalidArgument);

  v1::Welcome welcome = SomeWelcome();
  *welcome.mutable_job()->mutable_layers() = join.layers();
  EXPECT_EQ(FromProto(welcome).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MessagesFuzzTest, EmptyMessagesAreRefused) {
  EXPECT_FALSE(FromProto(v1::JoinRequest()).ok());
  EXPECT_FALSE(FromProto(v1::Welcome()).ok());
  EXPECT_FALSE(FromProto(v1::HeartbeatRequest()).ok());
  EXPECT_FALSE(FromProto(v1::HeartbeatResponse()).ok());
  EXPECT_FALSE(FromProto(v1::Member()).ok());
  EXPECT_FALSE(FromProto(v1::GetStatusResponse()).ok());
}

TEST(MessagesTest, NegativeCountsAreRefused) {
  JobStatus status;
  status.state = JobState::kRunning;
  v1::GetStatusResponse message = ToProto(status);
  message.set_workers(-5);
  EXPECT_FALSE(FromProto(message).ok());
}

TEST(MessagesTest, ARoundBeforeTheFirstIsRefused) {
  Heartbeat heartbeat;
  heartbeat.round = -7;
  heartbeat.stored_bytes = -1;
  EXPECT_FALSE(FromProto(ToProto(heartbeat)).ok());
}

}  // namespace
}  // namespace nereus
