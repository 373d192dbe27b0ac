// Plans change while a job runs. When servers or workers hand a layer over, its
// values and its optimizer state arrive whole.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
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
  UseExactSgd(options.job);
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

// Returns a job of two workers, of which all layers that can go by factors do
// so.
SimulatedClusterOptions FactorJob() {
  SimulatedClusterOptions options;
  options.workers = 2;
  options.shards = 2;
  options.rules.forced = Scheme::kFactor;
  UseExactSgd(options.job);
  options.job.optimizer.momentum = 0.5f;
  return options;
}

Workload LearningIntegers() {
  Workload workload = SmallIntegers();
  workload.reports = [layers = workload.layers](int, int64_t) {
    std::vector<int64_t> rows;
    for (const LayerSpec& layer : layers) {
      rows.push_back(layer.has_factors ? layer.rows : 0);
    }
    return rows;
  };
  return workload;
}

std::vector<float> ParametersOf(const SimulatedCluster& cluster) {
  std::vector<float> all;
  for (int layer = 0; layer < std::ssize(MixedLayers()); ++layer) {
    const auto values = cluster.worker(0).parameters(layer);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

int FactorLayersOf(const Job& job) {
  return static_cast<int>(absl::c_count_if(job.routes, [](const Route& route) {
    return route.scheme == Scheme::kFactor;
  }));
}

// The plan that knows the rows begins with the second step, by one change of
// epoch, in deterministic jobs, too.
TEST(PlanSwitchSimulationTest, SecondStepGoesByTheRowsOfTheFirst) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FactorJob();
    options.seed = seed;
    options.job.deterministic = seed % 2 == 0;
    options.job.backup = seed % 4 < 2;
    options.job.optimizer_place =
        seed % 3 == 0 ? OptimizerPlace::kWorker : OptimizerPlace::kServer;
    SimulatedCluster learning(options, LearningIntegers());
    ASSERT_TRUE(learning.RunSteps(0).ok());
    EXPECT_EQ(learning.job().switch_round, 0);
    EXPECT_EQ(FactorLayersOf(learning.job()), 0);
    ASSERT_TRUE(learning.RunSteps(2).ok());
    EXPECT_EQ(learning.job().epoch, kFirstEpoch + 1);
    EXPECT_FALSE(learning.job().switches());
    EXPECT_EQ(FactorLayersOf(learning.job()), 3);
    ASSERT_TRUE(learning.RunSteps(kSteps).ok());
    // A backup that has become current begins another epoch, with the same
    // plan.
    EXPECT_LE(learning.job().epoch, kFirstEpoch + 2);
    SimulatedCluster knowing(options, SmallIntegers());
    ASSERT_TRUE(knowing.RunSteps(kSteps).ok());
    EXPECT_EQ(knowing.job().epoch, kFirstEpoch);
    EXPECT_TRUE(ParametersOf(learning) == ParametersOf(knowing));
    for (const ShardServers& servers : learning.job().shard_servers) {
      EXPECT_EQ(servers.backup_is_current, options.job.backup);
    }
  }
}

// Rows of factors that a worker never reports cost one change of epoch, and no
// step waits for them.
TEST(PlanSwitchSimulationTest, WorkerThatReportsNoRowsHoldsUpNoStep) {
  Workload workload = LearningIntegers();
  workload.reports = [all = workload.reports](int rank, int64_t step) {
    std::vector<int64_t> rows = all(rank, step);
    if (rank == 1) absl::c_fill(rows, kRowsNotKnown);
    return rows;
  };
  SimulatedCluster cluster(FactorJob(), std::move(workload));
  ASSERT_TRUE(cluster.RunSteps(kSteps).ok());
  EXPECT_EQ(cluster.job().epoch, kFirstEpoch + 1);
  EXPECT_EQ(FactorLayersOf(cluster.job()), 0);
}

// A layer goes by factors from the start, so its backup is not current after
// the first switch. Nothing but the loss of a server at that moment ends the
// job.
TEST(PlanSwitchSimulationTest, BackupsAreCurrentAgainAfterTheFirstSwitch) {
  SimulatedClusterOptions options = FactorJob();
  options.job.backup = true;
  Workload workload = LearningIntegers();
  workload.reports = [all = workload.reports](int rank, int64_t step) {
    std::vector<int64_t> rows = all(rank, step);
    rows[4] = kRowsNotKnown;
    return rows;
  };
  SimulatedCluster cluster(options, std::move(workload));
  ASSERT_TRUE(cluster.RunSteps(0).ok());
  EXPECT_EQ(FactorLayersOf(cluster.job()), 1);
  EXPECT_EQ(cluster.job().switch_round, 0);
  ASSERT_TRUE(cluster.RunSteps(kSteps).ok());
  EXPECT_EQ(FactorLayersOf(cluster.job()), 3);
  // The second change of epoch says that the backups are current.
  EXPECT_EQ(cluster.job().epoch, kFirstEpoch + 2);
  for (const ShardServers& servers : cluster.job().shard_servers) {
    EXPECT_TRUE(servers.backup_is_current);
  }
}

// A single worker says that a layer has lost its factors.
TEST(PlanSwitchSimulationTest, LayerThatLosesItsFactorsGoesDense) {
  for (const bool is_deterministic : {false, true}) {
    SimulatedClusterOptions options = FactorJob();
    options.job.deterministic = is_deterministic;
    Workload workload = LearningIntegers();
    workload.reports = [all = workload.reports](int rank, int64_t step) {
      std::vector<int64_t> rows = all(rank, step);
      if (rank == 1 && step >= 3) rows[4] = kFactorsLost;
      return rows;
    };
    SimulatedCluster cluster(options, workload);
    ASSERT_TRUE(cluster.RunSteps(3).ok());
    EXPECT_EQ(FactorLayersOf(cluster.job()), 3);
    ASSERT_TRUE(cluster.RunSteps(kSteps).ok());
    EXPECT_EQ(FactorLayersOf(cluster.job()), 2);
    EXPECT_EQ(cluster.job().layers[4].rows, kFactorsLost);
    EXPECT_EQ(cluster.job().layers[4].has_factors, true);
    SimulatedCluster knowing(options, SmallIntegers());
    ASSERT_TRUE(knowing.RunSteps(kSteps).ok());
    EXPECT_TRUE(ParametersOf(cluster) == ParametersOf(knowing));
  }
}

}  // namespace
}  // namespace nereus
