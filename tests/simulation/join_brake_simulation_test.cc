// A worker joins a running job and crashes at once, again and again. The brake
// (JoinBrake) must leave the other workers at least 95 % of their steps.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

// Time of the loop before steps count: its first rounds are not braked yet.
constexpr absl::Duration kFirst = absl::Minutes(1);
// Time in which steps are counted.
constexpr absl::Duration kCounted = absl::Minutes(4);
constexpr char kTimeIsOver[] = "the time is over";

// A few minutes have thousands of steps, so layers are small.
std::vector<LayerSpec> SmallLayers() {
  std::vector<LayerSpec> layers = MixedLayers();
  std::erase_if(layers,
                [](const LayerSpec& layer) { return layer.parameters > 2000; });
  return layers;
}

SimulatedClusterOptions SteadyJob(uint64_t seed) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = 3;
  options.max_workers = 6;
  options.layer_time_max = absl::Milliseconds(40);
  options.network.delay_max = absl::Milliseconds(2);
  // Plans do not change: their changes of epoch would differ between runs.
  options.rules.cost = CostKind::kBytes;
  return options;
}

// Workers that are started one after the other, each of which dies when it is
// a member, or a little later.
class CrashLoop {
 public:
  CrashLoop(uint64_t seed, SimulatedCluster* cluster)
      : random_(seed ^ 0x3c6e), cluster_(cluster) {}

  void Start() {
    worker_ = cluster_->faults().StartWorker();
    Watch();
  }
  int crashes() const { return crashes_; }

 private:
  void Watch() {
    cluster_->faults().After(absl::Milliseconds(20), [this] {
      const auto& process = cluster_->processes()[worker_];
      if (process.member->start() == nullptr) return Watch();
      cluster_->faults().After(random_.Uniform() * absl::Milliseconds(400),
                               [this] { Crash(); });
    });
  }
  void Crash() {
    ++crashes_;
    cluster_->faults().Crash(worker_);
    cluster_->faults().After(absl::Milliseconds(300), [this] { Start(); });
  }

  Random random_;
  SimulatedCluster* const cluster_;
  ProcessId worker_ = 0;
  int crashes_ = 0;
};

struct Outcome {
  int64_t steps = 0;  // Steps of the first worker in kCounted.
  int crashes = 0;    // Crashes in all.
  // Time from the start of the replacement of an old worker to its first epoch.
  absl::Duration replaced_in = absl::InfiniteDuration();
  absl::Status status;
};

// Lets the job run for kFirst and kCounted. Then an old worker dies, and is
// started again, while the loop goes on.
class Run {
 public:
  Run(uint64_t seed, bool loops, int share)
      : cluster_(JobWith(seed, share), RandomWorkload(SmallLayers(), seed)),
        loop_(seed, &cluster_),
        loops_(loops) {}

  Outcome Go() {
    outcome_.status = cluster_.RunSteps(2);
    if (!outcome_.status.ok()) return outcome_;
    const ProcessId first = cluster_.live_workers()[0];
    const auto step = [this, first] {
      return cluster_.processes()[first].worker->step();
    };
    if (loops_) loop_.Start();
    cluster_.faults().After(kFirst, [&] { outcome_.steps = -step(); });
    cluster_.faults().After(kFirst + kCounted, [&] {
      outcome_.steps += step();
      Replace(cluster_.live_workers()[1]);
    });
    cluster_.faults().After(kFirst + kCounted + absl::Seconds(5), [&] {
      cluster_.laws().EndRun(AbortedError(kTimeIsOver));
    });
    outcome_.status = cluster_.RunSteps(1'000'000);
    outcome_.crashes = loop_.crashes();
    return outcome_;
  }

 private:
  static SimulatedClusterOptions JobWith(uint64_t seed, int share) {
    SimulatedClusterOptions options = SteadyJob(seed);
    options.join_share = share;
    return options;
  }
  void Replace(ProcessId victim) {
    const std::string name = cluster_.processes().name_of(victim);
    cluster_.faults().Crash(victim);
    next_ = cluster_.faults().StartWorker(name);
    started_at_ = cluster_.events().now();
    AwaitAdmission();
  }
  void AwaitAdmission() {
    cluster_.faults().After(absl::Milliseconds(20), [this] {
      if (cluster_.processes()[next_].member->start() == nullptr) {
        return AwaitAdmission();
      }
      outcome_.replaced_in = cluster_.events().now() - started_at_;
    });
  }

  SimulatedCluster cluster_;
  CrashLoop loop_;
  const bool loops_;
  Outcome outcome_;
  ProcessId next_ = 0;
  absl::Time started_at_;
};

Outcome RunJob(uint64_t seed, bool loops, int share) {
  Run run(seed, loops, share);
  Outcome outcome = run.Go();
  EXPECT_EQ(outcome.status.message(), kTimeIsOver) << outcome.status;
  EXPECT_GT(outcome.steps, 20);
  return outcome;
}

TEST(JoinBrakeSimulationTest, CrashLoopLeaves95PercentOfTheSteps) {
  for (const uint64_t seed : TestSeeds(4)) {
    SCOPED_TRACE(ReplayHint(seed));
    const Outcome alone = RunJob(seed, /*loops=*/false, /*share=*/20);
    const Outcome beside = RunJob(seed, /*loops=*/true, /*share=*/20);
    EXPECT_GE(static_cast<double>(beside.steps),
              0.95 * static_cast<double>(alone.steps));
    EXPECT_GE(beside.crashes, 5);   // Newcomers do get in.
    EXPECT_LE(beside.crashes, 18);  // Five minutes: one in 20 s.
    EXPECT_LT(beside.replaced_in, absl::Seconds(2));
  }
}

// Without the brake the same loop leaves less than half of the steps: the test
// above can fail.
TEST(JoinBrakeSimulationTest, WithoutTheBrakeTheLoopTakesMostSteps) {
  const Outcome alone = RunJob(/*seed=*/1, /*loops=*/false, /*share=*/0);
  const Outcome beside = RunJob(/*seed=*/1, /*loops=*/true, /*share=*/0);
  EXPECT_LT(2 * beside.steps, alone.steps);
  EXPECT_GT(beside.crashes, 60);
}

}  // namespace
}  // namespace nereus
