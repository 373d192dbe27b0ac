// Replicas are equal, contributions count once, and a job has the result of one
// machine. The jobs have no faults. Their network delays frames, delivers some
// of them twice, and keeps no order among the frames of different peers.

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "common/compute/optimizer.h"
#include "gtest/gtest.h"
#include "tests/simulation/laws/one_machine_law.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 150;

bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns the result of a layer on a worker: the parameters, or the mean
// gradient if the worker runs the optimizer.
absl::Span<const float> Outcome(const SimulatedCluster& cluster, int worker,
                                int layer) {
  const bool means =
      cluster.job().options.optimizer_place == OptimizerPlace::kWorker;
  return means ? cluster.worker(worker).mean_gradient(layer)
               : cluster.worker(worker).parameters(layer);
}

TEST(TrainingLawsTest, ReplicasAreEqualInAnyOrderOfArrival) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    const SimulatedClusterOptions options = RandomJob(seed);
    SimulatedCluster cluster(options,
                             WithLearntRows(MixedWorkload(seed), seed));
    for (int64_t steps = 1; steps <= 4; ++steps) {
      ASSERT_TRUE(cluster.RunSteps(steps).ok()) << cluster.RunSteps(steps);
      for (size_t layer = 0; layer < MixedLayers().size(); ++layer) {
        for (int worker = 1; worker < options.workers; ++worker) {
          ASSERT_TRUE(
              SameBits(Outcome(cluster, 0, static_cast<int>(layer)),
                       Outcome(cluster, worker, static_cast<int>(layer))))
              << "layer " << layer << " on workers 0 and " << worker
              << " after step " << steps;
        }
      }
    }
  }
}

// Each worker joins with other parameters. All begin with those of worker 0.
TEST(TrainingLawsTest, AllWorkersBeginWithTheParametersOfWorkerZero) {
  SimulatedClusterOptions options;
  options.workers = 4;
  options.shards = 2;
  const Workload workload = RandomWorkload(MixedLayers(), 1);
  SimulatedCluster cluster(options, workload);
  ASSERT_TRUE(cluster.RunSteps(0).ok());
  for (size_t layer = 0; layer < workload.layers.size(); ++layer) {
    std::vector<float> expected(workload.layers[layer].parameters);
    workload.initialize(0, static_cast<int>(layer), absl::MakeSpan(expected));
    for (int worker = 0; worker < options.workers; ++worker) {
      EXPECT_TRUE(
          SameBits(cluster.worker(worker).parameters(static_cast<int>(layer)),
                   expected));
    }
  }
}

TEST(TrainingLawsTest, EveryContributionIsCountedOnce) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = RandomJob(seed);
    options.workers = 1 << (seed % 3);
    options.rules.forced = seed % 2 == 0 ? Scheme::kServer : Scheme::kRing;
    options.rules.wire = WireType::kFloat32;
    options.rules.choose_wire = false;
    UseExactSgd(options.job);
    options.job.optimizer_place = OptimizerPlace::kServer;
    options.network.repeat_probability = 0.3;
    const Workload workload = IntegerWorkload(MixedLayers());
    SimulatedCluster cluster(options, workload);
    constexpr int64_t kSteps = 3;
    ASSERT_TRUE(cluster.RunSteps(kSteps).ok());
    for (size_t layer = 0; layer < workload.layers.size(); ++layer) {
      const int index = static_cast<int>(layer);
      std::vector<float> expected(workload.layers[layer].parameters);
      workload.initialize(0, index, absl::MakeSpan(expected));
      for (size_t i = 0; i < expected.size(); ++i) {
        for (int64_t step = 0; step < kSteps; ++step) {
          float sum = 0.0f;
          for (int rank = 0; rank < options.workers; ++rank) {
            sum += IntegerGradient(rank, step, index, static_cast<int64_t>(i));
          }
          expected[i] -= 0.5f * sum / static_cast<float>(options.workers);
        }
      }
      ASSERT_TRUE(SameBits(cluster.worker(0).parameters(index), expected))
          << "layer " << workload.layers[layer].name;
    }
  }
}

TEST(TrainingLawsTest, DeterministicJobHasTheBitsOfOneMachine) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = RandomJob(seed);
    options.rules.wire = WireType::kFloat32;
    options.job.deterministic = true;
    options.job.optimizer_place = OptimizerPlace::kServer;
    const Workload workload = WithLearntRows(MixedWorkload(seed), seed);
    SimulatedCluster cluster(options, workload);
    const OneMachineLaw& one_machine =
        cluster.laws().Add(std::make_unique<OneMachineLaw>(
            workload, Lineup::Singles(options.workers), options.job));
    constexpr int64_t kSteps = 3;
    ASSERT_EQ(cluster.RunSteps(kSteps), absl::OkStatus());
    // The law checks each layer on each worker: its first values, and its
    // result in each step.
    EXPECT_EQ(one_machine.checked_count(),
              std::ssize(workload.layers) * options.workers * (kSteps + 1));
  }
}

struct BatchCase {
  const char* name;
  Scheme scheme;
  UpdateRule rule;
};

class BatchSplitTest : public testing::TestWithParam<BatchCase> {};

// P workers with K / P rows each get the parameters of a single worker with K
// rows.
TEST_P(BatchSplitTest, WorkersWithPartsTrainLikeASingleWorkerWithTheBatch) {
  constexpr int64_t kM = 12;
  constexpr int64_t kN = 20;
  constexpr int64_t kGlobalRows = 24;
  constexpr int64_t kSteps = 20;
  const auto run = [&](int workers) {
    SimulatedClusterOptions options;
    options.seed = 5;
    options.workers = workers;
    options.shards = 2;
    options.rules.forced = GetParam().scheme;
    options.job.optimizer.rule = GetParam().rule;
    options.job.optimizer.weight_decay = 0.01f;
    SimulatedCluster cluster(options,
                             RegressionWorkload(kM, kN, kGlobalRows, workers));
    EXPECT_TRUE(cluster.RunSteps(kSteps).ok());
    const auto parameters = cluster.worker(0).parameters(0);
    return std::vector<float>(parameters.begin(), parameters.end());
  };
  const std::vector<float> one = run(1);
  for (const int workers : {2, 3, 4, 6}) {
    const std::vector<float> many = run(workers);
    for (size_t i = 0; i < one.size(); ++i) {
      // A gradient element is a sum of 24 products in another order. Its error
      // is below 32 roundings of 2^-24, relative to the sum of magnitudes,
      // which is below 2 here. SGD with momentum 0.9 applies an error up to 10
      // times, at a rate of 0.01, in 20 steps. Adam divides by the gradient's
      // size: for |g| >= 2^-8, the error relative to g is below 32 * 2^-24 * 2
      // / 2^-8, at a rate of 0.01, in 20 steps.
      const bool sgd = GetParam().rule == UpdateRule::kSgd;
      const double error = 32 * std::exp2(-24) * 2;
      const double bound =
          sgd ? error * 0.01 * 10 * kSteps : error * 256 * 0.01 * kSteps;
      ASSERT_NEAR(one[i], many[i], bound)
          << workers << " workers, element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SchemesAndOptimizers, BatchSplitTest,
                         testing::ValuesIn(std::vector<BatchCase>{
                             {"ServerSgd", Scheme::kServer, UpdateRule::kSgd},
                             {"ServerAdam", Scheme::kServer, UpdateRule::kAdam},
                             {"FactorSgd", Scheme::kFactor, UpdateRule::kSgd},
                             {"FactorAdam", Scheme::kFactor, UpdateRule::kAdam},
                             {"RingSgd", Scheme::kRing, UpdateRule::kSgd},
                             {"RingAdam", Scheme::kRing, UpdateRule::kAdam},
                         }),
                         [](const auto& info) { return info.param.name; });

// The layer has several chunks, on several shards.
TEST(TrainingLawsTest, LayersOfManyChunksAreExact) {
  SimulatedClusterOptions options;
  options.seed = 3;
  options.workers = 4;
  options.shards = 3;
  UseExactSgd(options.job);
  options.job.chunk_bytes = kChunkBytesMax;
  const Workload workload = IntegerWorkload(
      {{"big", LayerKind::kConvolution, 1, 2 * kChunkElementsMax + 77,
        2 * kChunkElementsMax + 77, 1}});
  SimulatedCluster cluster(options, workload);
  ASSERT_TRUE(cluster.RunSteps(2).ok());
  const auto parameters = cluster.worker(3).parameters(0);
  for (size_t i = 0; i < parameters.size(); ++i) {
    float expected = static_cast<float>(i % 5);
    for (int64_t step = 0; step < 2; ++step) {
      float sum = 0.0f;
      for (int rank = 0; rank < 4; ++rank) {
        sum += IntegerGradient(rank, step, 0, static_cast<int64_t>(i));
      }
      expected -= 0.5f * sum / 4.0f;
    }
    ASSERT_EQ(parameters[i], expected) << "element " << i;
  }
}

TEST(TrainingLawsTest, SameSeedGivesTheSameRun) {
  const auto digest = [](uint64_t seed) {
    SimulatedClusterOptions options;
    options.seed = seed;
    options.workers = 3;
    options.shards = 2;
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 9));
    EXPECT_TRUE(cluster.RunSteps(2).ok());
    return cluster.connections().network().digest();
  };
  EXPECT_EQ(digest(1), digest(1));
  EXPECT_NE(digest(1), digest(2));
}

}  // namespace
}  // namespace nereus
