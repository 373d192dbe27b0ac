// Laws 1 to 3 of docs/architecture.md on the production machines, under virtual
// time and a network that delays, reorders across peers and repeats frames.

#include <cmath>
#include <cstring>
#include <vector>

#include "common/compute/factor_gradient.h"
#include "common/compute/optimizer.h"
#include "common/plan/ring_segments.h"
#include "gtest/gtest.h"
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

// What the job leaves on a worker for one layer.
absl::Span<const float> Outcome(const SimulatedCluster& cluster, int worker,
                                int layer) {
  const bool means =
      cluster.job().options.optimizer_place == OptimizerPlace::kWorker;
  return means ? cluster.mean_gradient(worker, layer)
               : cluster.parameters(worker, layer);
}

TEST(TrainingLawsTest, ReplicasAreEqualWhateverTheOrderOfArrival) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    const SimulatedClusterOptions options = RandomJob(seed);
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
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

// Every worker starts from worker 0's parameters, whatever it brought itself.
TEST(TrainingLawsTest, InitialParametersAreWorkerZeros) {
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
      EXPECT_TRUE(SameBits(cluster.parameters(worker, static_cast<int>(layer)),
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
    options.job.optimizer = ExactSgd();
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
      ASSERT_TRUE(SameBits(cluster.parameters(0, index), expected))
          << "layer " << workload.layers[layer].name;
    }
  }
}

// One machine that does what the job should: the same sums in rank order, the
// same update.
class OneMachine {
 public:
  OneMachine(const Workload& workload, int workers, const JobOptions& options)
      : workload_(workload), workers_(workers), options_(options) {
    for (size_t i = 0; i < workload.layers.size(); ++i) {
      const int64_t count = workload.layers[i].parameters;
      parameters_.emplace_back(count);
      state_.emplace_back(OptimizerStateCount(options.optimizer.rule) * count);
      workload.initialize(0, static_cast<int>(i),
                          absl::MakeSpan(parameters_.back()));
    }
  }

  void Step(int64_t step, const std::vector<Route>& routes) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const int layer = static_cast<int>(i);
      const bool factors = workload_.layers[i].has_factors;
      float scale = 1.0f / static_cast<float>(workers_);
      std::vector<float> gradient;
      if (factors && routes[i].scheme == Scheme::kFactor) {
        gradient = StackedProduct(step, layer, scale);
        scale = 1.0f;
      } else {
        const bool ring = routes[i].scheme == Scheme::kRing;
        gradient = Sum(step, layer, factors, ring);
        if (ring) {
          for (float& value : gradient) value *= scale;
          scale = 1.0f;
        }
      }
      ApplyOptimizer(options_.optimizer, step,
                     static_cast<int64_t>(gradient.size()), scale,
                     gradient.data(), parameters_[i].data(), state_[i].data(),
                     parameters_[i].data());
    }
  }

  const std::vector<float>& parameters(int layer) const {
    return parameters_[layer];
  }

 private:
  struct Pair {
    std::vector<float> output_gradient;
    std::vector<float> input;
  };

  Pair FactorsOf(int rank, int64_t step, int layer) const {
    const LayerSpec& spec = workload_.layers[layer];
    Pair pair{std::vector<float>(spec.rows * spec.m),
              std::vector<float>(spec.rows * spec.n)};
    workload_.factors(rank, step, layer, parameters_[layer],
                      absl::MakeSpan(pair.output_gradient),
                      absl::MakeSpan(pair.input));
    return pair;
  }

  std::vector<float> Product(const Pair& pair, int64_t rows, int layer,
                             float scale) const {
    const LayerSpec& spec = workload_.layers[layer];
    std::vector<float> gradient(spec.parameters);
    FactorGradient(rows, spec.m, spec.n, spec.parameters > spec.m * spec.n,
                   scale, pair.output_gradient.data(), pair.input.data(),
                   gradient.data());
    return gradient;
  }

  std::vector<float> StackedProduct(int64_t step, int layer,
                                    float scale) const {
    Pair stack;
    for (int rank = 0; rank < workers_; ++rank) {
      const Pair pair = FactorsOf(rank, step, layer);
      stack.output_gradient.insert(stack.output_gradient.end(),
                                   pair.output_gradient.begin(),
                                   pair.output_gradient.end());
      stack.input.insert(stack.input.end(), pair.input.begin(),
                         pair.input.end());
    }
    return Product(stack, workers_ * workload_.layers[layer].rows, layer,
                   scale);
  }

  std::vector<float> GradientOf(int rank, int64_t step, int layer,
                                bool factors) const {
    const LayerSpec& spec = workload_.layers[layer];
    if (factors) {
      return Product(FactorsOf(rank, step, layer), spec.rows, layer, 1.0f);
    }
    std::vector<float> gradient(spec.parameters);
    workload_.gradient(rank, step, layer, parameters_[layer],
                       absl::MakeSpan(gradient));
    return gradient;
  }

  // In the order of ranks; a segment of a ring from the worker on whose it is.
  std::vector<float> Sum(int64_t step, int layer, bool factors,
                         bool ring) const {
    std::vector<std::vector<float>> gradients;
    for (int rank = 0; rank < workers_; ++rank) {
      gradients.push_back(GradientOf(rank, step, layer, factors));
    }
    std::vector<float> sum(gradients[0].size());
    const int64_t length =
        RingSegments(workload_.layers[layer].parameters, workers_)
            .full_length();
    for (size_t i = 0; i < sum.size(); ++i) {
      const auto first = ring ? static_cast<int>(i / length) : 0;
      sum[i] = gradients[first][i];
      for (int count = 1; count < workers_; ++count) {
        sum[i] += gradients[(first + count) % workers_][i];
      }
    }
    return sum;
  }

  const Workload& workload_;
  const int workers_;
  const JobOptions options_;
  std::vector<std::vector<float>> parameters_;
  std::vector<std::vector<float>> state_;
};

TEST(TrainingLawsTest, DeterministicJobHasTheBitsOfOneMachine) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = RandomJob(seed);
    options.rules.wire = WireType::kFloat32;
    options.job.deterministic = true;
    options.job.optimizer_place = OptimizerPlace::kServer;
    const Workload workload = RandomWorkload(MixedLayers(), seed);
    SimulatedCluster cluster(options, workload);
    OneMachine one(workload, options.workers, options.job);
    constexpr int64_t kSteps = 3;
    ASSERT_TRUE(cluster.RunSteps(kSteps).ok());
    for (int64_t step = 0; step < kSteps; ++step) {
      one.Step(step, cluster.job().routes);
    }
    for (size_t layer = 0; layer < workload.layers.size(); ++layer) {
      const int index = static_cast<int>(layer);
      ASSERT_TRUE(SameBits(cluster.parameters(0, index), one.parameters(index)))
          << "layer " << workload.layers[layer].name;
    }
  }
}

struct BatchCase {
  const char* name;
  Scheme scheme;
  UpdateRule rule;
};

class BatchSplitTest : public testing::TestWithParam<BatchCase> {};

// P workers with K / P rows each train like one worker with K rows.
TEST_P(BatchSplitTest, WorkersWithPartsEqualOneWithTheWholeBatch) {
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
    const auto parameters = cluster.parameters(0, 0);
    return std::vector<float>(parameters.begin(), parameters.end());
  };
  const std::vector<float> one = run(1);
  for (const int workers : {2, 3, 4, 6}) {
    const std::vector<float> many = run(workers);
    for (size_t i = 0; i < one.size(); ++i) {
      // A gradient element is a sum of 24 products in another order: below 32
      // roundings of 2^-24 relative to the sum of magnitudes, which is below 2
      // here. SGD: 20 steps with momentum 0.9 let it act up to 10 times, times
      // the rate 0.01. Adam divides by the gradient's own size, which amplifies
      // the error of a small one to at most the rate per step: where |g| >=
      // 2^-8, its error relative to g is below 32 * 2^-24 * 2 / 2^-8, times
      // 0.01 and 20 steps.
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

// Layers of several chunks, spread over shards.
TEST(TrainingLawsTest, LayersOfManyChunksAreExact) {
  SimulatedClusterOptions options;
  options.seed = 3;
  options.workers = 4;
  options.shards = 3;
  options.job.optimizer = ExactSgd();
  const Workload workload = IntegerWorkload(
      {{"big", LayerKind::kConvolution, 1, 2 * kChunkElementsMax + 77,
        2 * kChunkElementsMax + 77, 1}});
  SimulatedCluster cluster(options, workload);
  ASSERT_TRUE(cluster.RunSteps(2).ok());
  const auto parameters = cluster.parameters(3, 0);
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

TEST(TrainingLawsTest, TheSameSeedGivesTheSameRun) {
  const auto digest = [](uint64_t seed) {
    SimulatedClusterOptions options;
    options.seed = seed;
    options.workers = 3;
    options.shards = 2;
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 9));
    EXPECT_TRUE(cluster.RunSteps(2).ok());
    return cluster.network().digest();
  };
  EXPECT_EQ(digest(1), digest(1));
  EXPECT_NE(digest(1), digest(2));
}

}  // namespace
}  // namespace nereus
