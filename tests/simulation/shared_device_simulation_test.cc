// Jobs that share devices take turns: each trains as alone, none waits for
// ever, and steady jobs take the same order on all nodes.

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/shared_nodes.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 60;

bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns a job of `workers` workers whose result does not depend on the order
// of arrival.
SimulatedClusterOptions SteadyJob(uint64_t seed, int workers) {
  SimulatedClusterOptions options;
  options.seed = seed;
  options.workers = workers;
  options.shards = 1 + static_cast<int>(seed % 3);
  options.job.deterministic = true;
  options.gathers = seed % 2 == 0;
  return options;
}

TEST(SharedDeviceTest, EachJobTrainsAsAlone) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const int nodes = 1 + static_cast<int>(random.Below(3));
    const int jobs = 2 + static_cast<int>(random.Below(3));
    SharedNodes shared(nodes, seed);
    for (int i = 0; i < jobs; ++i) {
      const uint64_t own = seed * 10 + i;
      const int workers = 1 + static_cast<int>(random.Below(4));
      shared.AddJob(SteadyJob(own, workers), MixedWorkload(own));
    }
    ASSERT_EQ(shared.RunSteps(8), absl::OkStatus());
    for (int i = 0; i < jobs; ++i) {
      const SimulatedCluster& job = shared.job(i);
      SimulatedCluster alone(SteadyJob(seed * 10 + i, job.options().workers),
                             MixedWorkload(seed * 10 + i));
      ASSERT_EQ(alone.RunSteps(8), absl::OkStatus());
      for (size_t layer = 0; layer < MixedLayers().size(); ++layer) {
        ASSERT_TRUE(
            SameBits(job.worker(0).parameters(static_cast<int>(layer)),
                     alone.worker(0).parameters(static_cast<int>(layer))))
            << "job " << i << ", layer " << layer;
      }
    }
  }
}

TEST(SharedDeviceTest, JobsGoOnThroughFaults) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    SharedNodes shared(1 + static_cast<int>(random.Below(3)), seed);
    std::vector<std::unique_ptr<RandomFaults>> faults;
    const int jobs = 2 + static_cast<int>(random.Below(2));
    for (int i = 0; i < jobs; ++i) {
      SimulatedClusterOptions options = RandomJob(seed * 10 + i);
      options.turn_weight = 1.0 + static_cast<double>(random.Below(3));
      SimulatedCluster& job =
          shared.AddJob(options, MixedWorkload(seed * 10 + i));
      faults.push_back(
          std::make_unique<RandomFaults>(seed * 10 + i, WorkerFaults(), &job));
    }
    const absl::Status status = shared.RunSteps(15);
    if (IsLost(status)) continue;
    ASSERT_EQ(status, absl::OkStatus());
    for (int node = 0; node < shared.nodes(); ++node) {
      EXPECT_LE(shared.device(node).idle_max(),
                10 * kTurnGrace + absl::Microseconds(100));
    }
  }
}

// Returns a job whose steps all compute for the same time, and whose network
// delays each frame by the same time.
SimulatedClusterOptions EqualSteps(uint64_t seed, int workers,
                                   absl::Duration layer_time,
                                   absl::Duration delay) {
  SimulatedClusterOptions options = SteadyJob(seed, workers);
  options.gathers = false;
  options.shards = 1;
  options.layer_time_min = layer_time;
  options.layer_time_max = layer_time;
  options.network.delay_min = delay;
  options.network.delay_max = delay;
  return options;
}

// Returns the turns of a device in steps [first, last) of each job.
std::vector<SimulatedDevice::Turn> TurnsIn(const SimulatedDevice& device,
                                           int64_t first, int64_t last) {
  std::vector<SimulatedDevice::Turn> turns;
  for (SimulatedDevice::Turn turn : device.history()) {
    turn.rank = 0;  // Another one on each node.
    if (turn.step >= first && turn.step < last) turns.push_back(turn);
  }
  return turns;
}

// Stops workers for short times, so that nodes come to different orders. Jobs
// then find one order again, within two steps.
TEST(SharedDeviceTest, SteadyJobsTakeOneOrderOnAllNodes) {
  int disturbed = 0;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const int nodes = 2 + static_cast<int>(random.Below(3));
    const int jobs = 2 + static_cast<int>(random.Below(2));
    const absl::Duration layer_time = absl::Milliseconds(1);
    const absl::Duration computes =
        layer_time * static_cast<int64_t>(MixedLayers().size());
    // A part of a step in which the job waits.
    const double wait = 0.2 + 0.8 * random.Uniform();
    SharedNodes shared(nodes, seed);
    for (int i = 0; i < jobs; ++i) {
      shared.AddJob(
          EqualSteps(seed * 10 + i, nodes, layer_time, computes * wait / 2),
          MixedWorkload(seed * 10 + i));
    }
    // The workers have measured a step by then.
    int64_t steps = 30;
    ASSERT_EQ(shared.RunSteps(steps), absl::OkStatus());
    for (int round = 0; round < 3; ++round) {
      // In the middle of a run: workers that stand still begin no run.
      for (int i = 0; i < jobs; ++i) {
        SimulatedCluster& job = shared.job(i);
        for (const ProcessId worker : job.live_workers()) {
          if (random.Chance(0.5)) continue;
          const absl::Duration at = random.Uniform() * computes;
          job.faults().After(at,
                             [&job, worker] { job.faults().Pause(worker); });
          job.faults().After(at + random.Uniform() * 2 * computes,
                             [&job, worker] { job.faults().Resume(worker); });
        }
      }
      ASSERT_EQ(shared.RunSteps(steps + 2), absl::OkStatus());
      const auto before = TurnsIn(shared.device(0), steps, steps + 2);
      for (int node = 1; node < nodes; ++node) {
        disturbed += TurnsIn(shared.device(node), steps, steps + 2) != before;
      }
      // Runs on from here: jobs that wait for others would begin in one order.
      steps += 12;
      ASSERT_EQ(shared.RunSteps(steps), absl::OkStatus());
      const auto first = TurnsIn(shared.device(0), steps - 6, steps);
      for (int node = 1; node < nodes; ++node) {
        EXPECT_EQ(TurnsIn(shared.device(node), steps - 6, steps).size(),
                  first.size());
        ASSERT_TRUE(TurnsIn(shared.device(node), steps - 6, steps) == first)
            << "node " << node << " has another order, before step " << steps;
      }
    }
  }
  EXPECT_GT(disturbed, 0);
}

// Two equal jobs of two workers, on two nodes: the time of a step of each is
// the larger of both computing times and of one job alone.
TEST(SharedDeviceTest, TwoEqualJobsFillTheWaitsOfEachOther) {
  for (const double wait : {0.2, 0.5, 1.0}) {
    const absl::Duration layer_time = absl::Milliseconds(1);
    const absl::Duration computes =
        layer_time * static_cast<int64_t>(MixedLayers().size());
    const auto job = [&](uint64_t seed) {
      return EqualSteps(seed, 2, layer_time, computes * wait / 2);
    };
    SharedNodes shared(2, 1);
    shared.AddJob(job(1), MixedWorkload(1));
    shared.AddJob(job(2), MixedWorkload(2));
    SimulatedCluster alone(job(1), MixedWorkload(1));
    ASSERT_EQ(alone.RunSteps(20), absl::OkStatus());
    absl::Time from = alone.events().now();
    ASSERT_EQ(alone.RunSteps(120), absl::OkStatus());
    const absl::Duration step = (alone.events().now() - from) / 100;
    ASSERT_EQ(shared.RunSteps(20), absl::OkStatus());
    from = shared.now();
    ASSERT_EQ(shared.RunSteps(120), absl::OkStatus());
    const absl::Duration pair = (shared.now() - from) / 100;
    EXPECT_NEAR(absl::FDivDuration(pair, std::max(2 * computes, step)), 1, 0.05)
        << "alone " << step << ", both " << pair << ", wait " << wait;
    EXPECT_GE(absl::FDivDuration(2 * step, pair), 0.97 * (1 + wait)) << wait;
  }
}

}  // namespace
}  // namespace nereus
