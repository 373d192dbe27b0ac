// Feeds hostile lines to nereusctl's parser of a worker's events. Each test
// runs for two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/worker_event_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "common/base/random.h"
#include "common/messages/worker_event.h"
#include "common/plan/cost_model.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Returns lines as a worker writes them.
std::string SomeProgress() {
  return FormatWorkerEvent(WorkerProgress{/*rank=*/1, /*epoch=*/2, /*epochs=*/8,
                                          /*step=*/12, /*steps=*/620,
                                          /*loss=*/0.25,
                                          /*images_per_second=*/812.5,
                                          /*bytes=*/123456});
}

std::string SomeResult() {
  WorkerResult result;
  result.workers = 4;
  result.steps.done = 620;
  result.images = 79360;
  result.seconds.total = 41.5;
  result.test_accuracy = 0.985;
  for (const LayerSpec& spec :
       {VectorLayer("scale", 8), FactorLayer("fc", 64, 32, true, 4)}) {
    LayerResult layer;
    layer.spec = spec;
    layer.scheme =
        spec.kind == LayerKind::kFullyConnected ? "factor" : "server";
    layer.reason = "fewer elements";
    layer.rounds = 620;
    layer.bytes_sent = 1000;
    layer.latency_seconds_mean = 0.003;
    layer.time = {absl::Milliseconds(1), absl::Milliseconds(2)};
    result.layers.push_back(layer);
  }
  result.traffic = {{.is_shard = true, .rank = 1}, {.rank = 3}};
  result.measured = {
      absl::Milliseconds(20),
      LinkSpeed{125e6, absl::Microseconds(90), absl::Microseconds(3)}, 5e9};
  return FormatWorkerEvent(result);
}

Json SomeValue(Random& random) {
  switch (random.Below(9)) {
    case 0:
      return EdgeNumber(random);
    case 1:
      return static_cast<int64_t>(EdgeNumber(random));
    case 2:
      return random.Below(100);
    case 3:
      return (random.Uniform() - 0.5) * std::exp2(random.Below(1000));
    case 4:
      return nullptr;
    case 5:
      return random.Chance(0.5);
    case 6:
      return Json::array({1, "two"});
    case 7:
      return Json::object({{"rank", 1}});
    default:
      return random.Chance(0.5) ? "" : "factor";
  }
}

// Replaces or removes a few values anywhere in the JSON.
std::string ChangeValues(Random& random, const std::string& line) {
  Json json = Json::parse(line);
  for (uint64_t i = 1 + random.Below(2); i > 0; --i) {
    const Json paths = json.flatten();
    auto path = paths.begin();
    std::advance(path, random.Below(paths.size()));
    const Json::json_pointer pointer(path.key());
    if (random.Chance(0.1) && json.at(pointer.parent_pointer()).is_object()) {
      json.at(pointer.parent_pointer()).erase(pointer.back());
    } else {
      json.at(pointer) = SomeValue(random);
    }
  }
  return json.dump();
}

void ExpectRank(int rank) {
  ASSERT_GE(rank, 0);
  ASSERT_LT(rank, kWorkersMax);
}

// Sums of a few of these numbers fit an int64_t.
void ExpectCounts(const std::vector<int64_t>& counts) {
  for (const int64_t count : counts) {
    ASSERT_GE(count, 0);
    ASSERT_LE(count, int64_t{1} << 56);
  }
}

void ExpectSeconds(const std::vector<double>& values) {
  for (const double seconds : values) {
    ASSERT_TRUE(std::isfinite(seconds)) << seconds;
    ASSERT_GE(seconds, 0.0);
  }
}

void ExpectNumberOrNan(double value) { ASSERT_FALSE(std::isinf(value)); }

// Checks the promises of the parser for each accepted event.
void CheckAccepted(const WorkerProgress& progress) {
  ExpectRank(progress.rank);
  ExpectCounts({progress.epoch, progress.epochs, progress.step, progress.steps,
                progress.bytes});
  ExpectNumberOrNan(progress.loss);
  ASSERT_TRUE(std::isfinite(progress.images_per_second));
}

void CheckAccepted(const WorkerResult& result) {
  ExpectRank(result.rank);
  ASSERT_GE(result.workers, 0);
  ASSERT_LE(result.workers, kWorkersMax);
  ExpectCounts({result.steps.done, result.steps.skipped, result.images});
  ExpectSeconds({result.seconds.total, result.seconds.forward,
                 result.seconds.backward, result.seconds.wait,
                 result.seconds.turn});
  if (result.test_accuracy.has_value()) {
    ASSERT_TRUE(std::isfinite(*result.test_accuracy));
  }
  std::vector<LayerSpec> specs;
  for (const LayerResult& layer : result.layers) {
    specs.push_back(layer.spec);
    ASSERT_TRUE(SupportsScheme(layer.spec, layer.route().scheme));
    ExpectCounts({layer.rounds, layer.bytes_sent, layer.bytes_received});
    ExpectSeconds({layer.latency_seconds_mean});
  }
  ASSERT_TRUE(ValidateLayers(specs).ok());
  for (const WorkerTraffic& traffic : result.traffic) {
    ExpectRank(traffic.rank);
    ExpectCounts({traffic.bytes_sent, traffic.bytes_received});
  }
  // The event is read back from its own text.
  const auto again = ParseWorkerEvent(result.json);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(std::get<WorkerResult>(*again).json, result.json);
}

void CheckLine(const std::string& line, uint64_t& accepted) {
  // The memory has exactly this size, so that a sanitizer detects reads beyond
  // it.
  const std::vector<char> exact(line.begin(), line.end());
  const auto event =
      ParseWorkerEvent(absl::string_view(exact.data(), exact.size()));
  if (!event.ok()) {
    ASSERT_EQ(event.status().code(), absl::StatusCode::kInvalidArgument);
    ASSERT_FALSE(event.status().message().empty());
    return;
  }
  ++accepted;
  std::visit([](const auto& sound) { CheckAccepted(sound); }, *event);
}

void Fuzz(const std::string& sound) {
  uint64_t accepted = 0;
  CheckLine(sound, accepted);
  ASSERT_EQ(accepted, 1u) << "the unspoilt line is refused: " << sound;
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 50; ++i) {
      std::string line =
          random.Chance(0.7) ? ChangeValues(random, sound) : sound;
      if (random.Chance(0.05)) line = RandomBytes(random, random.Below(64));
      if (random.Chance(0.4)) Mutate(random, line);
      CheckLine(line, accepted);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

TEST(WorkerEventFuzzTest, ProgressIsRefusedOrSound) { Fuzz(SomeProgress()); }
TEST(WorkerEventFuzzTest, ResultIsRefusedOrSound) { Fuzz(SomeResult()); }

// Nests as deep as nereusctl's longest line allows. No function may recurse.
TEST(WorkerEventFuzzTest, DeepNestingDoesNoHarm) {
  constexpr size_t kDepth = size_t{2} << 20;
  const std::string open(kDepth, '[');
  const std::string close(kDepth, ']');
  EXPECT_FALSE(ParseWorkerEvent(open).ok());
  EXPECT_FALSE(ParseWorkerEvent(open + close).ok());
  for (std::string line : {SomeProgress(), SomeResult()}) {
    line.insert(1, "\"unknown\":" + open + close + ",");
    const auto event = ParseWorkerEvent(line);
    if (!event.ok()) {
      EXPECT_EQ(event.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace nereus
