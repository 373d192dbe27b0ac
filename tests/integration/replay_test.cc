// Workers that replay a model, in a job with real servers, in one process.

#include "worker/trainer/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"
#include "worker/trainer/replay_report.h"

namespace nereus {
namespace {

using testing::Each;
using testing::HasSubstr;

ReplayOptions Options(int64_t steps) {
  ReplayOptions options;
  options.layers = SmallModel();
  for (size_t i = 0; i < options.layers.size(); ++i) {
    options.times.push_back({absl::Milliseconds(1), absl::Milliseconds(2)});
  }
  options.steps = steps;
  return options;
}

absl::StatusOr<ReplayResult> RunReplay(const ReplayOptions& options,
                                       const ClientOptions& client_options) {
  const ReplayReport report =
      NEREUS_TRY(Replay(options, client_options, MakeCpuDevice().get()));
  const auto json = nlohmann::json::parse(ReplayJson(report));
  EXPECT_EQ(json["event"], "replayed");
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["steps"], options.steps);
  EXPECT_EQ(json["step_seconds"].size(), report.result.steps.size());
  EXPECT_EQ(json["layers"].size(), options.layers.size());
  EXPECT_EQ(json["layers"][0]["rounds"], options.steps);
  EXPECT_GT(json["bytes_sent"], 0);
  EXPECT_EQ(json["copies"], nullptr);
  return report.result;
}

class ReplayTest : public testing::TestWithParam<Overlap> {};

TEST_P(ReplayTest, ReplayDoesAllStepsInNoLessThanTheirTime) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.shards = 2;
  options.spec.options.overlap = GetParam();
  LocalCluster cluster(options);
  const auto results = cluster.RunWorkers(2, [&](int) -> absl::Status {
    const ReplayResult result =
        NEREUS_TRY(RunReplay(Options(12), cluster.client_options()));
    EXPECT_EQ(result.steps.size(), 11u);
    absl::Duration sum;
    for (const absl::Duration step : result.steps) sum += step;
    // Three layers take 3 ms each. If a sleep took too long, the replay makes
    // the next one shorter, by half a millisecond at most.
    EXPECT_GE(sum, 11 * absl::Milliseconds(9) - absl::Milliseconds(1));
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
}

INSTANTIATE_TEST_SUITE_P(Overlaps, ReplayTest,
                         testing::Values(Overlap::kNone, Overlap::kWaitFree),
                         [](const auto& info) {
                           return std::string(OverlapName(info.param));
                         });

// Replays a job with fusion tuning. Returns its log.
std::string LogOfTunedReplay(int64_t steps) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.shards = 1;
  options.spec.options.fusion_bytes = 1 << 16;
  options.spec.options.tune_fusion = true;
  testing::internal::CaptureStderr();
  LocalCluster cluster(options);
  ReplayOptions replay = Options(steps);
  for (LayerTime& time : replay.times) time = {};
  const auto results = cluster.RunWorkers(2, [&](int) {
    return RunReplay(replay, cluster.client_options()).status();
  });
  FlushLog(kLogFlushLimit);
  const std::string log = testing::internal::GetCapturedStderr();
  for (const absl::Status& result : results) {
    EXPECT_TRUE(result.ok()) << result << log;
  }
  return log;
}

// Runs all parts of tuning: the coordinator, sessions, and clients. The slower
// messages to the coordinator are, the more steps a trial takes. If a replay
// has ended before its first trial, the test repeats it with four times the
// steps.
TEST(ReplayTuningTest, ReplayTriesThresholdsOfFusionAndKeepsTheBest) {
  std::string log;
  int trials = 0;
  for (int64_t steps = 1600; trials == 0 && steps <= 25600; steps *= 4) {
    log = LogOfTunedReplay(steps);
    const std::vector<std::string> parts =
        absl::StrSplit(log, absl::MaxSplits(", the best by ", 1));
    if (parts.size() < 2) continue;
    const std::vector<std::string> words = absl::StrSplit(parts[1], ' ');
    ASSERT_TRUE(absl::SimpleAtoi(words[0], &trials)) << parts[1];
  }
  EXPECT_GE(trials, 2) << log;
}

TEST(ReplayOptionsTest, RefusalOfAWrongOptionNamesItsField) {
  const auto refusal = [](auto spoil) {
    ReplayOptions options = Options(3);
    EXPECT_TRUE(options.Validate().ok());
    spoil(options);
    return std::string(options.Validate().message());
  };
  EXPECT_THAT(refusal([](auto& options) { options.times.pop_back(); }),
              HasSubstr("times has 2"));
  EXPECT_THAT(refusal([](auto& options) { options.steps = 0; }),
              HasSubstr("steps is 0"));
  EXPECT_THAT(refusal([](auto& options) { options.delay = -absl::Seconds(1); }),
              HasSubstr("a delay is -1s"));
}

}  // namespace
}  // namespace nereus
