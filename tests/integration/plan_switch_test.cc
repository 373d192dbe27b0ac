// Plans that change while real workers train. If the job runs the optimizer,
// the update of a layer and its optimizer state move from the workers to a
// server.

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

using testing::Each;

constexpr int64_t kNoStep = std::numeric_limits<int64_t>::max();
constexpr int64_t kStepsTogether = 200;
constexpr absl::Duration kPatience = absl::Minutes(5);

// Returns a model with a plan that depends on the number of workers. With two
// servers and two workers, its layer "fc" moves fewer bytes by factors; with
// four workers, by the servers.
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

TEST_P(PlanSwitchTest, JoiningWorkersChangeTheRoutesOfLayers) {
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
  std::atomic<int64_t> last_step{kNoStep};
  const auto results = cluster.RunWorkers(4, [&](int i) -> absl::Status {
    ToyWorker& worker = workers[i];
    // Workers 2 and 3 join while workers 0 and 1 train. A joining worker gets
    // the worker-owned layers with the next push of its donor. So workers 0 and
    // 1 must train until all have joined.
    while (i >= 2 && !some_done) absl::SleepFor(absl::Milliseconds(5));
    NEREUS_TRY(worker.Connect(cluster.client_options_on(i)));
    const bool is_last = ++joined == 4;
    EXPECT_TRUE(i >= 2 || *worker.client()->factor_rows(1) > 0);
    const absl::Time deadline = absl::Now() + kPatience;
    for (int64_t step = 0; step < last_step;) {
      step = NEREUS_TRY(worker.NextStep());
      some_done = some_done || step > 3;
      // The worker that joins last chooses the last step. The other workers
      // cannot finish another step without it, so all read `last_step` in time.
      if (is_last && last_step == kNoStep) last_step = step + kStepsTogether;
      if (absl::Now() > deadline) return DeadlineExceededError("steps");
    }
    return worker.client()->Leave();
  });
  ASSERT_THAT(results, Each(absl::OkStatus()));
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
        SwitchCase{"NoOverlap", OptimizerPlace::kServer, UpdateRule::kSgd,
                   Overlap::kNone},
        SwitchCase{"Float16", OptimizerPlace::kServer, UpdateRule::kAdam,
                   Overlap::kWaitFree, WireType::kFloat16}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nereus
