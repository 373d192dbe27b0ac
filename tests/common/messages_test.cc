#include "common/messages/messages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/messages/status_messages.h"

namespace nereus {
namespace {

// The longest Protobuf duration: 10,000 years.
const absl::Duration kLongest = absl::Seconds(315576000000);

v1::MemberMessage StalledFor(absl::Duration waited) {
  Heartbeat heartbeat;
  heartbeat.stall = Stall{1, 2, "worker 3", waited};
  return ToProto(MemberMessage(heartbeat));
}

absl::Duration WaitedIn(const v1::MemberMessage& message) {
  const auto read = FromProto(message);
  EXPECT_TRUE(read.ok()) << read.status();
  return std::get<Heartbeat>(*read).stall->waited;
}

TEST(MessagesTest, DurationsSurviveTheWire) {
  for (const absl::Duration waited :
       {absl::ZeroDuration(), absl::Nanoseconds(1), absl::Seconds(1.5),
        -absl::Milliseconds(1), kLongest, -kLongest}) {
    EXPECT_EQ(WaitedIn(StalledFor(waited)), waited);
  }
}

TEST(MessagesTest, InfiniteDurationBecomesTheLongest) {
  const struct {
    absl::Duration said;
    absl::Duration sent;
  } kCases[] = {
      {absl::InfiniteDuration(), kLongest},
      {-absl::InfiniteDuration(), -kLongest},
      {kLongest + absl::Nanoseconds(1), kLongest},
      {absl::Seconds(std::numeric_limits<int64_t>::min()), -kLongest},
  };
  for (const auto& c : kCases) {
    const v1::MemberMessage message = StalledFor(c.said);
    const auto& waited = message.heartbeat().stall().waited();
    EXPECT_EQ(waited.seconds(), absl::ToInt64Seconds(c.sent)) << c.said;
    EXPECT_EQ(waited.nanos(), 0) << c.said;
  }
}

// A text may have any bytes, for example a file name in an error.
TEST(MessagesTest, TextThatIsNotUtf8Arrives) {
  CheckpointPart part;
  part.error = "cannot open \"/data/gr\xfc\xdf/a\"";
  v1::MemberMessage received;
  ASSERT_TRUE(received.ParseFromString(
      ToProto(MemberMessage(part)).SerializeAsString()));
  EXPECT_EQ(received.checkpoint_part().error(),
            R"(cannot open \"/data/gr\xfc\xdf/a\")");

  part.error = "cannot open \"/data/a\"";
  EXPECT_EQ(ToProto(MemberMessage(part)).checkpoint_part().error(), part.error);
}

// Any process may have written the message.
TEST(MessagesTest, ReceivedDurationIsBounded) {
  const struct {
    int64_t seconds;
    int32_t nanos;
    absl::Duration read;
  } kCases[] = {
      {std::numeric_limits<int64_t>::max(), std::numeric_limits<int32_t>::max(),
       kLongest},
      {std::numeric_limits<int64_t>::min(), std::numeric_limits<int32_t>::min(),
       -kLongest},
      {1, -1, absl::Seconds(1) - absl::Nanoseconds(1)},
  };
  for (const auto& c : kCases) {
    v1::MemberMessage message = StalledFor(absl::ZeroDuration());
    auto& waited =
        *message.mutable_heartbeat()->mutable_stall()->mutable_waited();
    waited.set_seconds(c.seconds);
    waited.set_nanos(c.nanos);
    EXPECT_EQ(WaitedIn(message), c.read);
  }
}

// Returns `message` after a trip through its wire format.
template <typename T>
T Received(const T& message) {
  v1::MemberMessage received;
  EXPECT_TRUE(received.ParseFromString(
      ToProto(MemberMessage(message)).SerializeAsString()));
  const absl::StatusOr<MemberMessage> read = FromProto(received);
  EXPECT_TRUE(read.ok()) << read.status();
  return std::get<T>(*read);
}

TEST(MessagesTest, SettingsArriveInOrderWithTheirValues) {
  JoinRequest request;
  request.settings = {
      {"--seed", "1"}, {"--data", "200 images"}, {"--trace", ""}};
  EXPECT_EQ(Received(request).settings, request.settings);
  request.settings.clear();
  EXPECT_EQ(Received(request).settings, request.settings);
}

TEST(MessagesTest, OptimizerPlaceArrivesAndMayFollowTheJob) {
  for (const std::optional<OptimizerPlace> place :
       {std::optional(OptimizerPlace::kServer),
        std::optional(OptimizerPlace::kWorker),
        std::optional<OptimizerPlace>()}) {
    JoinRequest request;
    request.caller.optimizer = place;
    EXPECT_EQ(Received(request).caller.optimizer, place);
  }
}

TEST(MessagesTest, JoinRequestSaysWhetherTheCallerScalesItsLoss) {
  for (const bool scales_loss : {false, true}) {
    JoinRequest request;
    request.caller.scales_loss = scales_loss;
    EXPECT_EQ(Received(request).caller.scales_loss, scales_loss);
  }
}

TEST(MessagesTest, HostClaimArrivesAndMayBeEmpty) {
  JoinRequest request;
  EXPECT_EQ(Received(request).host, HostClaim());
  request.host = {"rack-3", "5b1f2a6c/4026531840"};
  EXPECT_EQ(Received(request).host, request.host);
  request.host.node.clear();
  EXPECT_EQ(Received(request).host, request.host);
}

TEST(MessagesTest, UnknownOptimizerPlaceIsRefused) {
  v1::MemberMessage message = ToProto(MemberMessage(JoinRequest()));
  message.mutable_join()->set_optimizer(static_cast<v1::OptimizerPlace>(77));
  const absl::Status status = FromProto(message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("77"), std::string::npos)
      << status;
}

TEST(MessagesTest, FusionTrialWithANegativeNumberIsRefused) {
  const auto received = [](SetFusion set) {
    return FromProto(ToProto(CoordinatorMessage(set))).status();
  };
  EXPECT_TRUE(received({.trial = 1, .bytes = 65536, .from_step = 8}).ok());
  for (const SetFusion& wrong :
       {SetFusion{.trial = -1}, SetFusion{.bytes = -1},
        SetFusion{.from_step = -1}, SetFusion{.steps = -1}}) {
    EXPECT_EQ(received(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(MessagesTest, RuleOfTurnsIsFiniteOrRefused) {
  const auto received = [](const TurnRule& rule) -> absl::StatusOr<TurnRule> {
    const auto read = FromProto(ToProto(CoordinatorMessage(rule)));
    if (!read.ok()) return read.status();
    return std::get<TurnRule>(*read);
  };
  for (const TurnRule& rule :
       {TurnRule{}, TurnRule{-1.5, absl::Milliseconds(20)},
        TurnRule{1e9, kTurnCostMax}}) {
    EXPECT_EQ(*received(rule), rule);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  for (const TurnRule& wrong : {TurnRule{infinity}, TurnRule{std::nan("")},
                                TurnRule{0, -absl::Nanoseconds(1)},
                                TurnRule{0, kTurnCostMax + absl::Seconds(1)}}) {
    EXPECT_EQ(received(wrong).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  JoinRequest request;
  request.turn_base = infinity;
  EXPECT_FALSE(FromProto(ToProto(MemberMessage(request))).ok());
}

// A worker would otherwise report the failure of a job that goes on.
TEST(MessagesTest, JobThatIsNotOverIsRefusedInJobOver) {
  const auto received = [](JobState state) {
    return FromProto(ToProto(CoordinatorMessage(JobOver{state, "", 3})))
        .status();
  };
  EXPECT_TRUE(received(JobState::kFinished).ok());
  EXPECT_TRUE(received(JobState::kFailed).ok());
  for (const JobState wrong : {JobState::kWaiting, JobState::kRunning}) {
    const absl::Status status = received(wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(JobStateName(wrong)), std::string::npos)
        << status;
  }
}

TEST(MessagesTest, GatheringsArriveWithAllBytes) {
  const std::string bytes("\0\xff\n", 3);
  const Gather sent = {{int64_t{1} << 40, 3}, bytes};
  const Gather received = Received(sent);
  EXPECT_EQ(received.id, sent.id);
  EXPECT_EQ(received.value, bytes);
  const Gathered answer = {{kInitialRound, 0}, {bytes, "", "b"}, "why"};
  const auto read = FromProto(ToProto(CoordinatorMessage(answer)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<Gathered>(*read), answer);
}

TEST(MessagesTest, GatheringsOfTheLobbyArriveWithAllBytes) {
  const std::string bytes("\0\xff\n", 3);
  const LobbyGather sent = {9, "0.1.0", "training", 2, 3, 63, bytes, 7};
  EXPECT_EQ(Received(sent), sent);
  const LobbyGathered answer = {63, {bytes, "", "b"}, "why"};
  const auto read = FromProto(ToProto(CoordinatorMessage(answer)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<LobbyGathered>(*read), answer);
}

TEST(MessagesTest, GatheringOfTheLobbyOutOfRangeIsRefused) {
  const LobbyGather kWrong[] = {{9, "", "training", -1, 3, 0, ""},
                                {9, "", "training", 3, 3, 0, ""},
                                {9, "", "training", 0, 0, 0, ""},
                                {9, "", "training", 0, 3, -1, ""},
                                {9, "", "training", 0, 3, 64, ""}};
  for (const LobbyGather& wrong : kWrong) {
    EXPECT_EQ(FromProto(ToProto(MemberMessage(wrong))).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(MessagesTest, NumberOfTheLauncherArrives) {
  JoinRequest request;
  EXPECT_FALSE(Received(request).launch_rank.has_value());
  request.launch_rank = 0;
  EXPECT_EQ(Received(request).launch_rank, 0);
}

TEST(MessagesTest, GatheringWithoutAStepOrAnIndexIsRefused) {
  v1::MemberMessage message;
  message.mutable_gather()->set_step(-2);
  EXPECT_EQ(FromProto(message).status().code(),
            absl::StatusCode::kInvalidArgument);
  message.mutable_gather()->set_step(0);
  message.mutable_gather()->set_index(-1);
  EXPECT_EQ(FromProto(message).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MessagesTest, ReplicaChecksumsArriveWithRoundAndEpoch) {
  const ReplicaChecksums sent = {7, int64_t{1} << 40, {0, 1, 0xffffffff}};
  const ReplicaChecksums received = Received(sent);
  EXPECT_EQ(received.epoch, 7u);
  EXPECT_EQ(received.round, int64_t{1} << 40);
  EXPECT_EQ(received.layers, sent.layers);
  EXPECT_FALSE(received.is_sample);
  EXPECT_EQ(received.shard, std::nullopt);
  EXPECT_TRUE(Received(ReplicaChecksums{7, 8, {9}, true}).is_sample);
}

TEST(MessagesTest, ChecksumsOfAServerArriveWithShardAndChunk) {
  const ReplicaChecksums received =
      Received(ReplicaChecksums{7, 8, {9, 10}, false, 0, 3});
  EXPECT_EQ(received.shard, 0);
  EXPECT_EQ(received.first_chunk, 3);
  EXPECT_EQ(received.layers, (std::vector<uint32_t>{9, 10}));
}

TEST(MessagesTest, HeartbeatHasLongWork) {
  Heartbeat heartbeat;
  EXPECT_FALSE(Received(heartbeat).work.has_value());
  for (const auto kind :
       {LongWork::Kind::kRestore, LongWork::Kind::kMultiply}) {
    heartbeat.work = LongWork{kind, 3, 40};
    EXPECT_EQ(Received(heartbeat).work, heartbeat.work);
  }
}

TEST(MessagesTest, LongWorkThatCannotBeIsRefused) {
  for (const LongWork& work :
       {LongWork{LongWork::Kind::kRestore, 41, 40},
        LongWork{LongWork::Kind::kRestore, -1, 40},
        LongWork{static_cast<LongWork::Kind>(7), 3, 40}}) {
    Heartbeat heartbeat;
    heartbeat.work = work;
    EXPECT_FALSE(FromProto(ToProto(MemberMessage(heartbeat))).ok());
  }
}

TEST(MessagesTest, RowsHaveTheirBytesAndAreReadBack) {
  const FactorRows sent = {{0, kFactorsLost, kLayerRowsMax, 300}};
  EXPECT_EQ(Received(sent), sent);
  // Field 18 of 20 bytes; in it field 1, packed, of 18 bytes.
  EXPECT_EQ(ToProto(MemberMessage(sent)).SerializeAsString(),
            std::string("\x92\x01\x14\x0a\x12"
                        "\x00"
                        "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
                        "\x80\x80\x80\x80\x04"
                        "\xac\x02",
                        23));
}

TEST(MessagesTest, RowsOfMoreLayersThanAModelHasAreRefused) {
  v1::MemberMessage message;
  for (int i = 0; i < kLayersMax; ++i) {
    message.mutable_factor_rows()->add_rows(1);
  }
  EXPECT_TRUE(FromProto(message).ok());
  message.mutable_factor_rows()->add_rows(1);
  EXPECT_EQ(FromProto(message).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nereus
