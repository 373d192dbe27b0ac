// Feeds hostile traces of compute times to their parser. Runs for two seconds,
// or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/compute_trace_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/plan/compute_times.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

const std::vector<LayerSpec>& Layers() {
  static const auto* const layers = new std::vector<LayerSpec>{
      {"conv", LayerKind::kConvolution, 64, 27, 1792, 100},
      {"norm", LayerKind::kVector, 1, 64, 128, 1},
      {"fc", LayerKind::kFullyConnected, 10, 64, 650, 20, true}};
  return *layers;
}

std::string RandomNumber(Random& random) {
  switch (random.Below(4)) {
    case 0:
      return absl::StrCat(EdgeNumber(random));
    case 1:
      return absl::StrCat("-", EdgeNumber(random));
    case 2:
      return absl::StrCat("1e", static_cast<int>(random.Below(800)) - 400);
    default:
      return absl::StrCat(random.Uniform());
  }
}

std::string RandomTrace(Random& random) {
  std::string trace = "{\"layers\": [";
  for (const LayerSpec& layer : Layers()) {
    const bool wild = random.Chance(0.1);
    absl::StrAppend(
        &trace, trace.back() == '[' ? "" : ", ", "{\"name\": \"", layer.name,
        "\", \"forward_seconds\": ", wild ? RandomNumber(random) : "0.25",
        ", \"backward_seconds\": ", "0.5", "}");
  }
  return trace + "]}";
}

void ExpectSound(const absl::StatusOr<std::vector<LayerTime>>& times) {
  if (!times.ok()) {
    ASSERT_EQ(times.status().code(), absl::StatusCode::kInvalidArgument);
    ASSERT_LT(times.status().message().size(), 1000u);
    for (const char c : times.status().message()) {
      ASSERT_TRUE(c >= ' ' && c <= '~') << times.status();
    }
    return;
  }
  ASSERT_EQ(times->size(), Layers().size());
  for (const LayerTime& time : *times) {
    for (const absl::Duration each : {time.forward, time.backward}) {
      ASSERT_GE(each, absl::ZeroDuration());
      ASSERT_LE(each, kComputeTimeMax);
    }
  }
}

TEST(ComputeTraceFuzzTest, TraceIsRefusedOrHasSensibleTimes) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 100; ++i) {
      std::string text = RandomTrace(random);
      if (random.Chance(0.05)) text = RandomBytes(random, random.Below(200));
      if (random.Chance(0.7)) Mutate(random, text);
      const auto times = ParseComputeTrace(text, Layers());
      ExpectSound(times);
      if (HasFatalFailure()) return;
      if (times.ok()) ++accepted;
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

TEST(ComputeTraceFuzzTest, LargeInputIsRefusedQuickly) {
  const std::string large(1 << 20, 'x');
  for (const std::string& text :
       {std::string(1 << 20, '['), std::string(1 << 20, '{'), large,
        "{\"layers\": [" + std::string(1 << 20, '['),
        "{\"layers\": [{\"name\": \"" + large + "\"}]}",
        "{\"layers\": [{\"name\": \"fc\", \"forward_seconds\": \"" + large +
            "\"}]}"}) {
    const auto times = ParseComputeTrace(text, Layers());
    EXPECT_FALSE(times.ok());
    ExpectSound(times);
  }
}

}  // namespace
}  // namespace nereus
