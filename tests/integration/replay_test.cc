// Replayed models as workers of a job with real servers, in one process.

#include "worker/replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

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
  Replay replay(options);
  const auto client =
      NEREUS_TRY(Client::Connect(client_options, replay.Bindings()));
  ReplayResult result = NEREUS_TRY(replay.Run(client.get()));
  const auto json = nlohmann::json::parse(
      ReplayJson(client->traits().rank, result, client->Report().layers,
                 client->Report().peers));
  EXPECT_EQ(json["event"], "replayed");
  EXPECT_EQ(json["step_seconds"].size(), result.steps.size());
  EXPECT_EQ(json["layers"].size(), options.layers.size());
  EXPECT_EQ(json["layers"][0]["rounds"], options.steps);
  EXPECT_GT(json["bytes_sent"], 0);
  return result;
}

class ReplayTest : public testing::TestWithParam<Overlap> {};

TEST_P(ReplayTest, ReplayTakesAllStepsAndAtLeastTheirTime) {
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
    // Three layers take 3 ms each. A replay makes up for a late start, by half
    // a millisecond at most.
    EXPECT_GE(sum, 11 * absl::Milliseconds(9) - absl::Milliseconds(1));
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

INSTANTIATE_TEST_SUITE_P(Overlaps, ReplayTest,
                         testing::Values(Overlap::kNone, Overlap::kWaitFree,
                                         Overlap::kDecoupled),
                         [](const auto& info) {
                           return std::string(OverlapName(info.param));
                         });

// Runs all parts of tuning: the coordinator, sessions, and clients.
TEST(ReplayTuningTest, ReplayRunsWithFusionTuning) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.shards = 1;
  options.spec.options.fusion_bytes = 1 << 16;
  options.spec.options.tune_fusion = true;
  LocalCluster cluster(options);
  ReplayOptions replay = Options(600);
  for (LayerTime& time : replay.times) time = {};
  const auto results = cluster.RunWorkers(2, [&](int) {
    return RunReplay(replay, cluster.client_options()).status();
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST(ReplayOptionsTest, WrongOptionsAreRefusedWithTheField) {
  const auto refusal = [](auto spoil) {
    ReplayOptions options = Options(3);
    EXPECT_TRUE(options.Validate().ok());
    spoil(options);
    return std::string(options.Validate().message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal([](auto& options) { options.times.pop_back(); }),
              HasSubstr("times has 2"));
  EXPECT_THAT(refusal([](auto& options) { options.steps = 0; }),
              HasSubstr("steps is 0"));
  EXPECT_THAT(refusal([](auto& options) { options.delay = -absl::Seconds(1); }),
              HasSubstr("a delay is -1s"));
}

}  // namespace
}  // namespace nereus
