// Parameters of one worker change behind the job's back. The coordinator must
// end the job within a few heartbeats, and its message must name that worker,
// the layer and the step. That equal replicas give no alarm is checked in all
// other simulations, in which such an alarm ends the run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// A few heartbeats, and the time to hear of the other workers.
constexpr absl::Duration kLimit = absl::Seconds(6);

// Returns a job of `workers` workers in which a change of parameters lasts:
// workers own all layers. In a job in which the servers own them, the next
// result overwrites the change.
SimulatedClusterOptions JobOfWorkers(uint64_t seed, int workers) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = workers;
  options.corrupts = true;
  // A few steps a second, or a hundred.
  options.layer_time_max = absl::Milliseconds(seed % 8 == 0 ? 2 : 40);
  options.network.delay_max =
      std::min(options.network.delay_max, absl::Milliseconds(5));
  // A plan that changes heals the replicas: workers fetch a layer with a new
  // route again (seed 11 with two workers).
  options.rules.cost = CostKind::kBytes;
  if (seed % 3 == 0) {
    options.job.optimizer_place = OptimizerPlace::kWorker;
  } else {
    options.rules.forced = seed % 3 == 1 ? Scheme::kRing : Scheme::kFactor;
  }
  return options;
}

// Returns a random layer that workers own.
int DrawLayer(const Job& job, Random& random) {
  std::vector<int> owned;
  for (int layer = 0; layer < static_cast<int>(job.model().size()); ++layer) {
    if (job.WorkersOwn(layer)) owned.push_back(layer);
  }
  return owned.empty() ? -1 : owned[random.Below(owned.size())];
}

// Run of a job with one worker whose parameters change.
class CorruptedRun {
 public:
  CorruptedRun(uint64_t seed, int workers)
      : random_(seed ^ 0x77a3),
        cluster_(JobOfWorkers(seed, workers),
                 RandomWorkload(MixedLayers(), seed)) {}

  // Returns false if the job has no layer that workers own.
  bool Run() {
    EXPECT_TRUE(cluster_.RunSteps(1).ok());
    const absl::Duration after =
        absl::Milliseconds(static_cast<int64_t>(random_.Below(4000)));
    cluster_.faults().After(after, [this] { Corrupt(); });
    cluster_.faults().After(after + kLimit, [this] {
      cluster_.laws().EndRun(DeadlineExceededError("no sample has differed"));
    });
    status_ = cluster_.RunSteps(1'000'000);
    return layer_ >= 0;
  }

  const absl::Status& status() const { return status_; }
  const std::string& worker() const { return worker_; }
  std::string layer() const { return cluster_.job().layers[layer_].name; }
  int64_t step() const { return step_; }
  absl::Duration elapsed() const {
    return cluster_.events().now() - corrupted_at_;
  }

 private:
  // Changes one value of a small layer, or a sixteenth of a large one: of that
  // a sample has one run at least.
  void Corrupt() {
    const auto workers = cluster_.live_workers();
    const ProcessId id = workers[random_.Below(workers.size())];
    SimulatedWorker& victim = *cluster_.processes()[id].worker;
    worker_ = cluster_.processes().name_of(id);
    step_ = victim.step();
    corrupted_at_ = cluster_.events().now();
    layer_ = DrawLayer(cluster_.job(), random_);
    if (layer_ < 0) {
      return cluster_.laws().EndRun(AbortedError("no layer is the workers'"));
    }
    const auto values = victim.mutable_parameters(layer_);
    const size_t count = values.size() <= 256 ? 1 : values.size() / 8;
    const size_t begin = random_.Below(values.size() - count + 1);
    for (size_t i = begin; i < begin + count; ++i) values[i] += 1.0f;
  }

  Random random_;
  SimulatedCluster cluster_;
  absl::Status status_;
  std::string worker_;
  int layer_ = -1;
  int64_t step_ = 0;
  absl::Time corrupted_at_;
};

TEST(ReplicaSamplesSimulationTest, WorkerThatDeviatesIsNamedWithinSeconds) {
  int found = 0;
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(ReplayHint(seed));
    CorruptedRun run(seed, /*workers=*/3);
    if (!run.Run()) continue;
    ++found;
    ASSERT_EQ(run.status().code(), absl::StatusCode::kAborted) << run.status();
    const std::string message(run.status().message());
    EXPECT_THAT(message, HasSubstr(absl::StrCat("worker ", run.worker(),
                                                " deviates from the other")));
    EXPECT_THAT(message,
                HasSubstr(absl::StrCat("of layer ", run.layer(), " ")));
    EXPECT_LE(run.elapsed(), kLimit);
    // The step is one of the first in which the replicas differed.
    const size_t at = message.find("after step ");
    ASSERT_NE(at, std::string::npos) << message;
    EXPECT_GE(std::stoll(message.substr(at + 11)), run.step() - 1) << message;
  }
  if (TriesAllSeeds()) {
    EXPECT_GE(found, 60);
  }
}

// With two workers there is no majority.
TEST(ReplicaSamplesSimulationTest, BothOfTwoWorkersAreNamed) {
  int found = 0;
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    CorruptedRun run(seed, /*workers=*/2);
    if (!run.Run()) continue;
    ++found;
    ASSERT_EQ(run.status().code(), absl::StatusCode::kAborted) << run.status();
    const std::string message(run.status().message());
    EXPECT_THAT(message, testing::ContainsRegex(
                             " on worker .* and .* on worker .*\\. D"));
    EXPECT_THAT(message, testing::Not(HasSubstr("deviate")));
    EXPECT_LE(run.elapsed(), kLimit);
  }
  if (TriesAllSeeds()) {
    EXPECT_GE(found, 30);
  }
}

}  // namespace
}  // namespace nereus
