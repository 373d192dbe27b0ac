// Sparse rounds lose no gradient and count none twice, whatever connections
// break. If all blocks are sent, the job has the bits of the dense job.

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 150;
constexpr int64_t kSteps = 10;

SimulatedClusterOptions SparseJob(uint64_t seed) {
  Random random(seed ^ 0x5ba5);
  SimulatedClusterOptions options = RandomJob(seed);
  // With powers of two, means of small integers are exact.
  options.workers = 1 << random.Below(3);
  options.max_workers = options.workers;
  options.rules = PlanRules();
  options.rules.forced = random.Chance(0.5) ? Scheme::kServer
                         : seed % 2 == 0    ? Scheme::kRing
                                            : Scheme::kDirect;
  UseExactSgd(options.job);
  options.job.optimizer_place = OptimizerPlace::kServer;
  options.job.backup = options.shards > 1 && random.Chance(0.3);
  constexpr double kSparsity[] = {0.1, 0.5, 0.9, 0.999};
  constexpr int64_t kBlocks[] = {256, 1000, 4096, 65536};
  options.job.sparsity.share = kSparsity[random.Below(4)];
  options.job.sparsity.block_elements = kBlocks[random.Below(4)];
  options.job.sparsity.dense_steps = static_cast<int64_t>(random.Below(3));
  return options;
}

// Checks for every element that the sent part and the residuals add up to the
// sum of all gradients. Returns the number of values in residuals.
int64_t ExpectNothingLost(const SimulatedCluster& cluster,
                          const Workload& workload) {
  const int workers = cluster.job().worker_count();
  int64_t held_values = 0;
  for (int layer = 0; layer < static_cast<int>(workload.layers.size());
       ++layer) {
    std::vector<float> first(workload.layers[layer].parameters);
    workload.initialize(0, layer, absl::MakeSpan(first));
    const auto now = cluster.worker(0).parameters(layer);
    std::vector<float> held(first.size(), 0.0f);
    for (int rank = 0; rank < workers; ++rank) {
      const SparseGradient& gradient =
          *cluster.worker(rank).machine()->syncer(layer).sparse();
      for (int64_t frame = 0; frame < gradient.grid().Count(); ++frame) {
        const Buffer values = gradient.held(frame);
        held_values += values.float_count();
        for (int64_t i = 0; i < values.float_count(); ++i) {
          held[gradient.grid().Offset(frame) + i] += values.floats()[i];
        }
      }
    }
    for (size_t i = 0; i < first.size(); ++i) {
      const float sent = (first[i] - now[i]) / ExactSgd().learning_rate *
                         static_cast<float>(workers);
      const auto element = static_cast<int64_t>(i);
      EXPECT_EQ(sent + held[i], IntegerSum(workers, kSteps, layer, element))
          << "layer " << layer << ", element " << i << ": " << sent << " sent, "
          << held[i] << " in residuals";
      if (testing::Test::HasFailure()) return 0;
    }
  }
  return held_values;
}

TEST(SparseRoundsTest, SentAndHeldBackGradientsAreAllThatWereProduced) {
  std::map<Scheme, int64_t> held;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    const SimulatedClusterOptions options = SparseJob(seed);
    const Workload workload = IntegerWorkload(MixedLayers());
    SimulatedCluster cluster(options, workload);
    cluster.set_patience(absl::Seconds(20));
    RandomFaults faults(seed, HarmlessFaults(), &cluster);
    ASSERT_EQ(cluster.RunSteps(kSteps), absl::OkStatus());
    // A worker that counted as dead and joined again has lost its residual.
    if (cluster.job().workers != FirstWorkers(options.workers)) continue;
    held[options.rules.forced.value()] += ExpectNothingLost(cluster, workload);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(held.size() == 3 || TestSeeds(kSeeds).size() < 50);
  for (const auto& [scheme, values] : held) EXPECT_GT(values, 0);
}

// Parameters are those of the dense job as long as all blocks are sent: with
// momentum and decay, by servers and rings, with backups and without.
TEST(SparseRoundsTest, JobWithAllBlocksHasTheBitsOfTheDenseJob) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = SparseJob(seed);
    options.workers = 1 + static_cast<int>(seed % 4);
    options.job.optimizer = OptimizerOptions();
    options.job.optimizer.weight_decay = 0.01f;
    // Sums must not depend on the order of arrival. With fp16, values depend on
    // the exponent of their frame, and a sparse job sends each block as a
    // frame.
    options.job.deterministic = true;
    if (options.rules.wire == WireType::kFloat16) {
      options.rules.wire = WireType::kBfloat16;
    }
    options.job.sparsity.dense_steps = kSteps;
    SimulatedClusterOptions dense = options;
    dense.job.sparsity.share = 0;
    // On a ring, the worker that begins a sum depends on the segment, and
    // sparse jobs have other segments. Sums of two addends do not depend on the
    // order.
    if (options.rules.forced == Scheme::kRing && options.workers > 2) {
      options.rules.forced = dense.rules.forced = Scheme::kServer;
    }
    const Workload workload = RandomWorkload(MixedLayers(), seed);
    SimulatedCluster with(options, workload);
    SimulatedCluster without(dense, workload);
    ASSERT_TRUE(with.RunSteps(kSteps).ok());
    ASSERT_TRUE(without.RunSteps(kSteps).ok());
    for (size_t i = 0; i < workload.layers.size(); ++i) {
      const int layer = static_cast<int>(i);
      const auto ours = with.worker(0).parameters(layer);
      const auto theirs = without.worker(0).parameters(layer);
      ASSERT_EQ(
          std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)),
          0)
          << "layer " << layer;
    }
  }
}

// All workers that began a round may die before it is closed, and the workers
// in their place may have another choice of blocks. Replicas must still be
// equal.
TEST(SparseRoundsTest, ReplicasAreEqualAfterAllWorkersAreReplaced) {
  int lost = 0;
  const std::vector<uint64_t> seeds = TestSeeds(2 * kSeeds);
  for (const uint64_t seed : seeds) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    SimulatedClusterOptions options = SparseJob(seed);
    options.job.optimizer = OptimizerOptions();
    options.shards = 2 + static_cast<int>(random.Below(3));
    options.job.backup = random.Chance(0.7);
    options.workers = 1 + static_cast<int>(random.Below(3));
    options.max_workers = options.workers + 2;
    if (random.Chance(0.7)) options.rules.forced = Scheme::kServer;
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    FaultScript& faults = cluster.faults();
    cluster.set_patience(absl::Seconds(20));
    ASSERT_TRUE(cluster.RunSteps(1 + random.Below(3)).ok());
    cluster.AdvanceBy(absl::Microseconds(random.Below(60000)));
    const std::vector<ProcessId> older = cluster.live_workers();
    for (int i = 0; i < 2; ++i) faults.StartWorker();
    // The older workers leave or die before the new ones are admitted, or
    // after.
    if (random.Chance(0.5)) {
      cluster.AdvanceBy(absl::Milliseconds(random.Below(200)));
    }
    for (const ProcessId process : older) {
      if (random.Chance(0.3)) {
        faults.LeaveSoon(process);
      } else {
        faults.Crash(process);
      }
    }
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
    lost += IsLost(status) ? 1 : 0;
  }
  // The values of layers on a ring are lost if all workers die.
  EXPECT_LE(lost, static_cast<int>(seeds.size()) / 4);
}

}  // namespace
}  // namespace nereus
