// Workers that die, stall, come and leave, and connections that break.

#include "gtest/gtest.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 100;
constexpr int64_t kSteps = 8;

// Longest time that several faults in a row may delay the job.
constexpr absl::Duration kPatience = absl::Seconds(45);

SimulatedClusterOptions FaultyJob(uint64_t seed) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = 2 + static_cast<int>(seed % 4);
  options.max_workers = options.workers + 3;
  return options;
}

TEST(MembershipSimulationTest, SurvivingWorkersGoOnTogetherUnderAnyFaults) {
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

TEST(MembershipSimulationTest, ContributionOfEveryLiveWorkerCountsOnce) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    options.job.optimizer_place = OptimizerPlace::kWorker;
    SimulatedCluster cluster(options, SignedWorkload());
    cluster.set_patience(kPatience);
    const RandomFaults faults(seed, WorkerFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
}

TEST(MembershipSimulationTest, DeadWorkerCostsAFailureTimeout) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    const bool pauses = seed % 2 == 0;
    const ProcessId victim = cluster.live_workers()[seed % 2];
    const absl::Time before = cluster.events().now();
    if (pauses) {
      cluster.faults().Pause(victim);
    } else {
      cluster.faults().Crash(victim);
    }
    // RunSteps waits for all live workers. A paused worker cannot do the step.
    const absl::Status status = cluster.RunSteps(4);
    const absl::Duration took = cluster.events().now() - before;
    if (pauses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      cluster.faults().Resume(victim);
      const absl::Status after = cluster.RunSteps(4);
      ASSERT_TRUE(after.ok()) << after;
    } else {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_LT(took, absl::Seconds(3));
    }
  }
}

TEST(MembershipSimulationTest, WorkerThatLeavesLosesNothing) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.faults().LeaveSoon(cluster.live_workers()[seed % 2]);
    const absl::Status status = cluster.RunSteps(5);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(cluster.job().worker_count(), options.workers - 1);
  }
}

}  // namespace
}  // namespace nereus
