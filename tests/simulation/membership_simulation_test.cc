// Workers die, stall, join and leave, and connections break.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

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
    SimulatedCluster cluster(FaultyJob(seed), MixedWorkload(seed));
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

// Workers join in an order that the seed draws. The launcher's numbers are in
// no order either, so that workers of a host need not have adjacent ranks.
TEST(MembershipSimulationTest, RanksAtTheStartAreThoseOfTheLauncher) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    if (seed % 2 == 0) options.places.workers_on = {options.workers - 1, 1};
    Random random(seed);
    for (int32_t i = 0; i < options.workers; ++i) {
      options.launch_ranks.push_back(i);
      std::swap(options.launch_ranks[i],
                options.launch_ranks[random.Below(i + 1)]);
    }
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_EQ(cluster.RunSteps(3), absl::OkStatus());
    std::vector<int32_t> ranks;
    for (const ProcessId worker : cluster.live_workers()) {
      ranks.push_back(cluster.processes()[worker].worker->rank());
    }
    ASSERT_EQ(ranks, options.launch_ranks);
  }
}

TEST(MembershipSimulationTest, DeadWorkerCostsAFailureTimeout) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    FaultScript& faults = cluster.faults();
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    const bool pauses = seed % 2 == 0;
    const ProcessId victim = cluster.live_workers()[seed % 2];
    const absl::Time before = cluster.events().now();
    if (pauses) {
      faults.Pause(victim);
    } else {
      faults.Crash(victim);
    }
    // RunSteps waits for all live workers. A paused worker cannot do the step.
    const absl::Status status = cluster.RunSteps(4);
    const absl::Duration took = cluster.events().now() - before;
    if (pauses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      faults.Resume(victim);
      ASSERT_EQ(cluster.RunSteps(4), absl::OkStatus());
    } else {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_LT(took, absl::Seconds(3));
    }
  }
}

// Returns the numbers of the hosts that the job's workers run on.
std::set<int32_t> HostsOf(const Job& job) {
  std::set<int32_t> hosts;
  for (const EpochWorker& each : job.workers) hosts.insert(each.host);
  return hosts;
}

TEST(MembershipSimulationTest, HostHasItsNumberUntilItReboots) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    options.places.workers_on = {2, 1};
    options.workers = 3;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    EXPECT_EQ(cluster.job().LineupOf(kStepMax).hosts(), 2);
    const std::set<int32_t> before = HostsOf(cluster.job());
    EXPECT_EQ(before.size(), 2u);

    const bool reboots = seed % 2 == 0;
    std::vector<std::string> names;
    for (const ProcessId worker : cluster.live_workers()) {
      if (cluster.hosts().HostOf(worker) != 0) continue;
      names.push_back(cluster.processes().name_of(worker));
    }
    cluster.faults().CrashHost(0, reboots);
    EXPECT_EQ(cluster.live_workers().size(), 1u);
    for (const std::string& name : names) cluster.faults().StartWorker(name);
    ASSERT_EQ(cluster.RunSteps(6), absl::OkStatus());
    EXPECT_EQ(cluster.job().worker_count(), 3);
    EXPECT_EQ(cluster.job().LineupOf(kStepMax).hosts(), 2);
    EXPECT_EQ(HostsOf(cluster.job()) == before, !reboots);
  }
}

TEST(MembershipSimulationTest, WorkerThatLeavesLosesNothing) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.faults().LeaveSoon(cluster.live_workers()[seed % 2],
                               /*early=*/seed % 4 < 2);
    ASSERT_EQ(cluster.RunSteps(5), absl::OkStatus());
    EXPECT_EQ(cluster.job().worker_count(), options.workers - 1);
  }
}

// The others notice at once that it has left, not at their next heartbeats.
TEST(MembershipSimulationTest, WorkerThatLeavesEarlyDelaysNoOther) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    const absl::Time begun_at = cluster.events().now();
    cluster.faults().LeaveSoon(cluster.live_workers()[0], /*early=*/true);
    ASSERT_EQ(cluster.RunSteps(5), absl::OkStatus());
    EXPECT_LT(cluster.events().now() - begun_at, absl::Milliseconds(700));
  }
}

TEST(MembershipSimulationTest, JobStopsWhenAllWorkersLeaveEarly) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = FaultyJob(seed);
    options.has_disk = true;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(3).ok());
    for (const ProcessId worker : cluster.live_workers()) {
      cluster.faults().LeaveSoon(worker, /*early=*/true);
    }
    cluster.AdvanceBy(absl::Seconds(20));
    EXPECT_EQ(cluster.coordinator()->state(), JobState::kStopped);
    EXPECT_THAT(cluster.coordinator()->reason(),
                HasSubstr("its parameters are in the checkpoint of round"));
  }
}

}  // namespace
}  // namespace nereus
