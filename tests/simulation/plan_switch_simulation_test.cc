// Plans change while a job runs. When servers or workers hand a layer over, its
// values and its optimizer state arrive whole.

#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int64_t kSteps = 10;

// Returns a job with plans that change often, because workers report drawn
// measurements after about half of their steps. Learning rate, momentum and
// number of workers are powers of two, so ten steps are exact in float32.
SimulatedClusterOptions ChangingJob(uint64_t seed) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = seed % 2 == 0 ? 2 : 4;
  options.job.deterministic = false;
  options.rules = {};
  options.rules.cost = CostKind::kTime;
  options.job.optimizer = ExactSgd();
  options.job.optimizer.momentum = 0.5f;
  options.job.backup = options.shards > 1 && seed % 3 == 0;
  return options;
}

// Returns a workload with small integers as gradients and factors.
Workload SmallIntegers() {
  Workload workload = IntegerWorkload(MixedLayers());
  workload.factors = [](int rank, int64_t step, int layer,
                        absl::Span<const float>,
                        absl::Span<float> output_gradient,
                        absl::Span<float> input) {
    for (size_t i = 0; i < output_gradient.size(); ++i) {
      output_gradient[i] =
          IntegerGradient(rank, step, layer, i) > 0 ? 1.0f : -1.0f;
    }
    for (size_t i = 0; i < input.size(); ++i) {
      input[i] = IntegerGradient(rank, step + 5, layer, i) > 3 ? 2.0f : -1.0f;
    }
  };
  return workload;
}

// Result of a job.
struct Outcome {
  std::vector<float> parameters;  // Parameters of a worker.
  int changes = 0;                // Number of steps that changed the routes.
  bool lost_worker = false;       // True if a worker was replaced.
};

absl::StatusOr<Outcome> RunJob(const SimulatedClusterOptions& options,
                               bool faults) {
  SimulatedCluster cluster(options, SmallIntegers());
  cluster.set_patience(absl::Seconds(60));
  std::unique_ptr<RandomFaults> strikes;
  if (faults) {
    strikes = std::make_unique<RandomFaults>(options.seed, HarmlessFaults(),
                                             &cluster);
  }
  Outcome outcome;
  std::vector<Route> routes;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const absl::Status status = cluster.RunSteps(step);
    if (!status.ok()) return status;
    outcome.changes += !routes.empty() && routes != cluster.job().routes;
    routes = cluster.job().routes;
  }
  outcome.lost_worker = cluster.job().workers.back().rank >= options.workers;
  for (int layer = 0; layer < static_cast<int>(MixedLayers().size()); ++layer) {
    const auto values =
        cluster.worker(cluster.job().workers[0].rank).parameters(layer);
    outcome.parameters.insert(outcome.parameters.end(), values.begin(),
                              values.end());
  }
  return outcome;
}

TEST(PlanSwitchSimulationTest, JobComesToTheSameBitsWhateverItsPlansAre) {
  int changes = 0;  // Number of steps that changed the routes, over all jobs.
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(ReplayHint(seed));
    const SimulatedClusterOptions options = ChangingJob(seed);
    const auto changing = RunJob(options, seed % 4 < 2);
    if (IsLost(changing.status())) continue;
    ASSERT_TRUE(changing.ok()) << changing.status();
    SimulatedClusterOptions constant = options;
    constant.rules.forced = Scheme::kServer;
    const auto same = RunJob(constant, false);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(same->changes, 0);
    if (changing->lost_worker) continue;
    EXPECT_TRUE(changing->parameters == same->parameters);
    changes += changing->changes;
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(changes, 50);
  }
}

}  // namespace
}  // namespace nereus
