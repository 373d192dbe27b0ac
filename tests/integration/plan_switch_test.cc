// Plans that change while real workers train: who updates a layer, and who has
// its state, changes with them.

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

constexpr int64_t kSteps = 400;
constexpr absl::Duration kPatience = absl::Seconds(30);

// With two servers, two workers move less by factors, four through the servers.
std::vector<LayerSpec> UndecidedModel() {
  return {{"conv", LayerKind::kConvolution, 30, 70, 2100, 1},
          {"fc", LayerKind::kFullyConnected, 64, 64, 64 * 65, 26, true}};
}

struct SwitchCase {
  const char* name;
  OptimizerPlace place;
  UpdateRule rule;
  Overlap overlap = Overlap::kWaitFree;
  WireType wire = WireType::kFloat32;
};

class PlanSwitchTest : public testing::TestWithParam<SwitchCase> {};

TEST_P(PlanSwitchTest, AsWorkersComeLayersGoAnotherWay) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.max_workers = 4;
  options.spec.shards = 2;
  options.spec.options.optimizer_place = GetParam().place;
  options.spec.options.optimizer.rule = GetParam().rule;
  options.spec.options.overlap = GetParam().overlap;
  options.spec.rules.wire = GetParam().wire;
  LocalCluster cluster(options);
  std::vector<ToyWorker> workers;
  for (int i = 0; i < 4; ++i) workers.emplace_back(UndecidedModel());
  std::atomic<bool> some_done{false};
  std::atomic<int> joined{0};
  const auto results = cluster.RunWorkers(4, [&](int i) -> absl::Status {
    ToyWorker& worker = workers[i];
    // The last two come when the first two are training.
    while (i >= 2 && !some_done) absl::SleepFor(absl::Milliseconds(5));
    NEREUS_RETURN_IF_ERROR(worker.Connect(cluster.client_options()));
    ++joined;
    EXPECT_TRUE(i >= 2 || worker.client()->takes_factors(1));
    const absl::Time deadline = absl::Now() + kPatience;
    for (int64_t step = 0; step < kSteps;) {
      NEREUS_ASSIGN_OR_RETURN(step, worker.NextStep());
      some_done = some_done || step > 3;
      // However fast the first two are, the others find them training.
      while (step == kSteps / 2 && joined < 4 && absl::Now() < deadline) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      if (absl::Now() > deadline) return absl::DeadlineExceededError("steps");
    }
    return worker.client()->Leave();
  });
  for (const absl::Status& result : results) ASSERT_TRUE(result.ok()) << result;
  for (const ToyWorker& worker : workers) {
    EXPECT_EQ(worker.last_scheme(1), "server");
    EXPECT_EQ(worker.parameters(), workers[0].parameters());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanSwitchTest,
    testing::Values(
        SwitchCase{"ServersUpdate", OptimizerPlace::kServer, UpdateRule::kAdam},
        SwitchCase{"WorkersUpdate", OptimizerPlace::kWorker, UpdateRule::kSgd},
        SwitchCase{"Dear", OptimizerPlace::kServer, UpdateRule::kSgd,
                   Overlap::kDecoupled},
        SwitchCase{"Float16", OptimizerPlace::kServer, UpdateRule::kAdam,
                   Overlap::kWaitFree, WireType::kFloat16}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nereus
