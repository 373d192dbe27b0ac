// Workers that die, stall, come and leave, and connections that break: laws 1,
// 2 and 4 of docs/architecture.md, on the production machines.

#include "gtest/gtest.h"
#include "tests/simulation/contribution_check.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 100;
constexpr int64_t kSteps = 8;

// Longer than any fault may delay the job, and a job's last change may take
// several in a row.
constexpr absl::Duration kPatience = absl::Seconds(45);

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

TEST(MembershipSimulationTest, EveryLiveWorkersContributionCountsOnce) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    options.job.optimizer_place = OptimizerPlace::kWorker;
    SimulatedCluster cluster(options, SignedWorkload());
    cluster.set_patience(kPatience);
    const ContributionCheck contributions(options, &cluster);
    const RandomFaults faults(seed, WorkerFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
    ASSERT_TRUE(contributions.status().ok()) << contributions.status();
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
      const absl::Status after = cluster.RunSteps(4);
      ASSERT_TRUE(after.ok()) << after;
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

}  // namespace
}  // namespace nereus
