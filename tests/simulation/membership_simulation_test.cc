// Workers that die, stall, come and leave, and connections that break: laws 1,
// 2 and 4 of docs/architecture.md, on the production machines.

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/simulation/simulated_cluster.h"
#include "gtest/gtest.h"
#include "tests/testing/random_faults.h"
#include "tests/testing/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 300;
constexpr int64_t kSteps = 8;

// Longer than any fault may delay the job, and a job's last change may take
// several in a row.
constexpr absl::Duration kPatience = absl::Seconds(15);

SimulatedClusterOptions FaultyJob(uint64_t seed) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = 2 + static_cast<int>(seed % 4);
  options.max_workers = options.workers + 3;
  return options;
}

TEST(MembershipSimulationTest, SurvivorsGoOnTogetherWhateverHappens) {
  int lost = 0;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedCluster cluster(FaultyJob(seed),
                             RandomWorkload(MixedLayers(), seed));
    cluster.set_patience(kPatience);
    const RandomFaults faults(seed, WorkerFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    lost += IsLost(status);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
  EXPECT_LE(lost, 1 + static_cast<int>(TestSeeds(kSeeds).size()) / 20);
}

// Worker r's gradient is 1 where an element's column is r, modulo this, and 0
// elsewhere: a mean tells whose it is of, and how often each was counted.
constexpr int64_t kColumns = 32;

Workload SignedWorkload() {
  Workload workload = IntegerWorkload(MixedLayers());
  const auto sign = [](int rank, absl::Span<float> row) {
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<int64_t>(i) % kColumns == rank ? 1.0f : 0.0f;
    }
  };
  workload.gradient = [sign](int rank, int64_t, int, absl::Span<const float>,
                             absl::Span<float> gradient) {
    sign(rank, gradient);
  };
  workload.factors = [sign](int rank, int64_t, int, absl::Span<const float>,
                            absl::Span<float> output_gradient,
                            absl::Span<float> input) {
    // One of the four rows of the batch.
    std::fill(output_gradient.begin(), output_gradient.end(), 0.0f);
    std::fill(input.begin(), input.end(), 0.0f);
    const auto first = output_gradient.subspan(0, output_gradient.size() / 4);
    std::fill(first.begin(), first.end(), 1.0f);
    sign(rank, input.subspan(0, input.size() / 4));
  };
  return workload;
}

// Whether `mean` is of each of some ranks once, `rank` among them.
bool CountsOnce(absl::Span<const float> mean, int rank) {
  const auto columns = mean.subspan(0, kColumns);
  const auto contributors = std::count_if(columns.begin(), columns.end(),
                                          [](float x) { return x != 0.0f; });
  const float share = 1.0f / static_cast<float>(contributors);
  return columns[rank] != 0.0f &&
         std::all_of(columns.begin(), columns.end(), [&](float x) {
           return x == 0.0f || std::abs(x - share) < 1e-6f;
         });
}

TEST(MembershipSimulationTest, EveryLiveWorkersContributionCountsOnce) {
  const std::vector<LayerSpec> layers = MixedLayers();
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    options.job.optimizer_place = OptimizerPlace::kWorker;
    SimulatedCluster cluster(options, SignedWorkload());
    cluster.set_patience(kPatience);
    const RandomFaults faults(seed, WorkerFaults(), &cluster);
    cluster.set_on_outcome([&](int rank, int layer, int64_t round) {
      const Job& job = cluster.job();
      const int position = job.PositionOf(rank);
      if (position < 0 || job.workers[position].first_step > round) return;
      if (layers[layer].n < kColumns) return;
      EXPECT_TRUE(CountsOnce(cluster.mean_gradient(rank, layer), rank))
          << "worker " << rank << ", round " << round << " of layer " << layer;
    });
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
    ASSERT_FALSE(HasFailure());
  }
}

TEST(MembershipSimulationTest, ADeadWorkerCostsOneFailureTimeout) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    const bool silent = seed % 2 == 0;
    const ProcessId victim = cluster.live_workers()[seed % 2];
    const absl::Time before = cluster.events().now();
    if (silent) {
      cluster.Pause(victim);
    } else {
      cluster.Crash(victim);
    }
    // Those who live; the one that is silent has not done the step.
    const absl::Status status = cluster.RunSteps(4);
    const absl::Duration took = cluster.events().now() - before;
    if (silent) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      cluster.Resume(victim);
      ASSERT_TRUE(cluster.RunSteps(4).ok());
    } else {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_LT(took, absl::Seconds(3));
    }
  }
}

TEST(MembershipSimulationTest, OneWhoLeavesLosesNothing) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.LeaveSoon(cluster.live_workers()[seed % 2]);
    const absl::Status status = cluster.RunSteps(5);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(cluster.job().worker_count(), options.workers - 1);
  }
}

TEST(MembershipSimulationTest, ASeedGivesTheSameRunToTheLastFrame) {
  for (const uint64_t seed : {7u, 8u}) {
    uint64_t digest = 0;
    for (int run = 0; run < 2; ++run) {
      SimulatedCluster cluster(FaultyJob(seed),
                               RandomWorkload(MixedLayers(), seed));
      const RandomFaults faults(seed, WorkerFaults(), &cluster);
      ASSERT_TRUE(cluster.RunSteps(kSteps).ok());
      if (run == 1) {
        EXPECT_EQ(cluster.network().digest(), digest);
      }
      digest = cluster.network().digest();
    }
  }
}

}  // namespace
}  // namespace nereus
