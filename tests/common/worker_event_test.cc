#include "common/messages/worker_event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr char kProgress[] =
    R"({"event":"progress","rank":1,"epoch":2,"epochs":10,"step":12,)"
    R"("steps":620,"loss":0.25,"images_per_second":812.5,"bytes":123456})";

constexpr char kDone[] =
    R"({"event":"done","rank":0,"joins":2,"workers":4,"steps":620,)"
    R"("last_step":619,"saved_round":599,"skipped_steps":3,)"
    R"("train_loss":0.02,"test_accuracy":0.985,"images":79360,"seconds":41.5,)"
    R"("forward_seconds":10.5,"backward_seconds":20.25,"wait_seconds":8.0,)"
    R"("turn_seconds":1.5,)"
    R"("parameter_checksum":"9ae0daaf","initial_bytes":77,"measured":null,)"
    R"("layers":[{"name":"fc1","kind":"fc",)"
    R"("m":10,"n":64,"parameters":650,"rows":32,"has_factors":true,)"
    R"("scheme":"factor",)"
    R"("wire":"bf16",)"
    R"("reason":"fewer","rounds":620,"bytes_sent":100,"bytes_received":200,)"
    R"("latency_seconds_mean":0.004}],"traffic":[{"peer":"shard","rank":1,)"
    R"("bytes_sent":5,"bytes_received":6},{"peer":"worker","rank":3,)"
    R"("bytes_sent":7,"bytes_received":8}]})";

TEST(WorkerEventTest, ReadsProgress) {
  const auto event = ParseWorkerEvent(kProgress);
  ASSERT_TRUE(event.ok()) << event.status();
  const auto& progress = std::get<WorkerProgress>(*event);
  EXPECT_EQ(progress.rank, 1);
  EXPECT_EQ(progress.epoch, 2);
  EXPECT_EQ(progress.epochs, 10);
  EXPECT_EQ(progress.step, 12);
  EXPECT_EQ(progress.steps, 620);
  EXPECT_EQ(progress.loss, 0.25);
  EXPECT_EQ(progress.images_per_second, 812.5);
  EXPECT_EQ(progress.bytes, 123456);
}

TEST(WorkerEventTest, ReadsTheResult) {
  const auto event = ParseWorkerEvent(kDone);
  ASSERT_TRUE(event.ok()) << event.status();
  const auto& result = std::get<WorkerResult>(*event);
  EXPECT_EQ(result.rank, 0);
  EXPECT_EQ(result.joins, 2);
  EXPECT_EQ(result.workers, 4);
  EXPECT_EQ(result.steps.done, 620);
  EXPECT_EQ(result.steps.last, 619);
  EXPECT_EQ(result.steps.skipped, 3);
  EXPECT_EQ(result.steps.train_loss, 0.02);
  EXPECT_EQ(result.saved_round, 599);
  EXPECT_EQ(result.test_accuracy, 0.985);
  EXPECT_EQ(result.images, 79360);
  EXPECT_EQ(result.seconds.total, 41.5);
  EXPECT_EQ(result.seconds.forward, 10.5);
  EXPECT_EQ(result.seconds.backward, 20.25);
  EXPECT_EQ(result.seconds.wait, 8);
  EXPECT_EQ(result.seconds.turn, 1.5);
  EXPECT_EQ(result.parameter_checksum, "9ae0daaf");
  EXPECT_EQ(result.initial_bytes, 77);

  ASSERT_THAT(result.layers, SizeIs(1));
  const LayerResult& layer = result.layers[0];
  const LayerSpec spec = {"fc1", LayerKind::kFullyConnected, 10, 64, 650, 32,
                          true};
  EXPECT_EQ(layer.spec, spec);
  EXPECT_EQ(layer.route().scheme, Scheme::kFactor);
  EXPECT_EQ(layer.route().wire, WireType::kBfloat16);
  EXPECT_EQ(layer.reason, "fewer");
  EXPECT_EQ(layer.rounds, 620);
  EXPECT_EQ(layer.bytes_sent, 100);
  EXPECT_EQ(layer.bytes_received, 200);
  EXPECT_EQ(layer.latency_seconds_mean, 0.004);

  ASSERT_THAT(result.traffic, SizeIs(2));
  EXPECT_TRUE(result.traffic[0].is_shard);
  EXPECT_EQ(result.traffic[0].rank, 1);
  EXPECT_EQ(result.traffic[0].bytes_sent, 5);
  EXPECT_EQ(result.traffic[0].bytes_received, 6);
  EXPECT_FALSE(result.traffic[1].is_shard);
  EXPECT_EQ(result.traffic[1].rank, 3);
}

TEST(WorkerEventTest, AccuracyAndLossMayBeUnknown) {
  const auto done =
      ParseWorkerEvent(absl::StrReplaceAll(kDone, {{"0.985", "null"}}));
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(std::get<WorkerResult>(*done).test_accuracy, std::nullopt);
  const auto progress =
      ParseWorkerEvent(absl::StrReplaceAll(kProgress, {{"0.25", "null"}}));
  ASSERT_TRUE(progress.ok()) << progress.status();
  EXPECT_TRUE(std::isnan(std::get<WorkerProgress>(*progress).loss));
}

struct BadCase {
  const char* name;
  const char* event;    // A valid event.
  const char* from;     // Text in the event to replace.
  const char* to;       // Text to replace it by.
  const char* message;  // Part of the error.
};

class BadWorkerEventTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadWorkerEventTest, IsRefusedByTheFieldsName) {
  const BadCase& c = GetParam();
  const std::string text = absl::StrReplaceAll(c.event, {{c.from, c.to}});
  ASSERT_NE(text, c.event) << "the row changes nothing";
  const auto event = ParseWorkerEvent(text);
  EXPECT_EQ(event.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(event.status().message()), HasSubstr(c.message));
}

constexpr BadCase kBadCases[] = {
    {"NoObject", kProgress, "{\"event\"", "[\"event\"", "is not JSON"},
    {"CutShort", kDone, "}]}", "}", "is not JSON"},
    {"OtherEvent", kProgress, "\"progress\"", "\"joined\"", "joined"},
    {"NoEvent", kProgress, "\"event\"", "\"e\"", "event is missing"},
    {"NoRank", kProgress, "\"rank\"", "\"r\"", "rank is missing"},
    {"NegativeRank", kProgress, "\"rank\":1", "\"rank\":-1", "rank is -1"},
    {"HugeRank", kProgress, "\"rank\":1", "\"rank\":18446744073709551615",
     "rank is 18446744073709551615"},
    {"TextRank", kProgress, "\"rank\":1", "\"rank\":\"1\"", "rank is string"},
    {"FractionOfStep", kProgress, "\"step\":12", "\"step\":1.5",
     "step is number"},
    {"NegativeBytes", kProgress, "123456", "-5", "bytes is -5"},
    {"ListAsLoss", kProgress, "0.25", "[]", "loss is array"},
    {"NegativeWorkers", kDone, "\"workers\":4", "\"workers\":-1",
     "workers is -1"},
    {"NegativeSeconds", kDone, "41.5", "-1", "seconds is -1"},
    {"ChecksumIsNumber", kDone, "\"9ae0daaf\"", "9", "parameter_checksum"},
    {"LayersIsObject", kDone, "\"traffic\":[", "\"layers\":{},\"traffic\":[",
     "layers is object"},
    {"LayerIsNumber", kDone, "\"layers\":[", "\"layers\":[7,",
     "done event: layers[0]: is not a JSON object"},
    {"UnknownKind", kDone, "\"fc\"", "\"lstm\"", "lstm"},
    {"UnknownScheme", kDone, "\"factor\"", "\"pigeon\"", "pigeon"},
    {"SchemeThatTheLayerHasNot", kDone, "\"has_factors\":true",
     "\"has_factors\":false", "cannot go by scheme factor"},
    {"ImpossibleShape", kDone, "\"m\":10", "\"m\":11", "fc1"},
    {"UnknownPeer", kDone, "\"peer\":\"worker\"", "\"peer\":\"cat\"",
     "peer is cat"},
};

// Messages end up in a terminal.
TEST(WorkerEventTest, TextOfAWorkerIsEscapedAndCutInMessages) {
  const struct {
    const char* event;
    const char* from;
  } kCases[] = {{kProgress, "\"progress\""},
                {kDone, "\"fc\""},
                {kDone, "\"factor\""},
                {kDone, "\"shard\""}};
  const std::string text =
      absl::StrCat("\"\\n\\u001b[2J\xc3\xa9", std::string(10000, 'x'), "\"");
  for (const auto& c : kCases) {
    const auto event =
        ParseWorkerEvent(absl::StrReplaceAll(c.event, {{c.from, text}}));
    const std::string message(event.status().message());
    EXPECT_THAT(message, HasSubstr(R"(\n\x1b[2J\xc3\xa9xxx)")) << c.from;
    EXPECT_LT(message.size(), 400) << c.from;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, BadWorkerEventTest,
                         testing::ValuesIn(kBadCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nereus
