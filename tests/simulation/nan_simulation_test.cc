// Gradients have NaNs, infinities, or values whose sum overflows. With
// NanPolicy::kSkip, all workers skip the step or none does, whatever dies
// meanwhile. With kFail, the job ends, and its message names the worker.

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/drawn_features.h"
#include "tests/simulation/laws/skipped_steps_law.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int64_t kSteps = 8;

// Values that no gradient may have. The sum of two finite ones is infinite.
// They are powers of two, which every wire type has.
constexpr float kPoisons[] = {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), 0x1p127f,
                              -0x1p127f};

// Returns a workload in which each worker has such a value, the same in all
// steps of a seed, in one step of `one_in`. A step that is done again in the
// next life draws anew.
Workload PoisonedWorkload(uint64_t seed, uint64_t one_in) {
  Workload workload = WithLearntRows(MixedWorkload(seed), seed);
  workload.poisons = [seed, one_in](int rank, int64_t step, int life) {
    Random random(((seed * 100 + static_cast<uint64_t>(rank)) * 100 +
                   static_cast<uint64_t>(step)) *
                      100 +
                  static_cast<uint64_t>(life));
    return random.Below(one_in) == 0 ? kPoisons[seed % 4] : 0.0f;
  };
  return workload;
}

TEST(NanSimulationTest, StepWithANanIsSkippedByAllWorkers) {
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = RandomJob(seed);
    options.job.nan = NanPolicy::kSkip;
    const Workload workload = PoisonedWorkload(seed, 8);
    SimulatedCluster cluster(options, workload);
    ASSERT_EQ(cluster.RunSteps(kSteps), absl::OkStatus());
    for (int64_t step = 0; step < kSteps; ++step) {
      bool poisoned = false;
      for (int rank = 0; rank < options.workers; ++rank) {
        poisoned = poisoned || workload.poisons(rank, step, /*life=*/1) != 0;
      }
      EXPECT_EQ(cluster.laws().Find<SkippedStepsLaw>()->Skipped(step), poisoned)
          << step;
    }
  }
}

// FiniteParametersLaw looks at every worker's replica after every round.
TEST(NanSimulationTest, NoNanGetsIntoParametersWhateverDies) {
  for (const uint64_t seed : TestSeeds(400)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DrawFeatures(seed);
    options.job.rounds.quorum = Quorum::kAll;
    options.job.sparsity.share = 0;
    options.job.nan = NanPolicy::kSkip;
    SimulatedCluster cluster(options, PoisonedWorkload(seed, 4));
    cluster.set_patience(absl::Seconds(40));
    const RandomFaults faults(seed, AllFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
}

// The member that adds up the gradient finds the NaN before it sends any other
// member a part of the sum.
TEST(NanSimulationTest, NanThatIsNotAllowedEndsTheJobAndNamesTheWorker) {
  for (const uint64_t seed : TestSeeds(200)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DrawFeatures(seed);
    options.job.sparsity.share = 0;
    options.job.nan = NanPolicy::kFail;
    Workload workload = WithLearntRows(MixedWorkload(seed), seed);
    int64_t step = static_cast<int64_t>(seed % kSteps);
    const auto layer_at = [&workload](int64_t at) {
      return workload.layers[static_cast<size_t>(at) % workload.layers.size()];
    };
    // The client checks factors itself, because no member adds them up.
    while (layer_at(step).has_factors) ++step;
    const int poisoned = static_cast<int>(seed / 3) % options.workers;
    workload.poisons = [=](int rank, int64_t at, int) {
      return rank == poisoned && at == step ? kPoisons[seed % 4] : 0.0f;
    };
    SimulatedCluster cluster(options, workload);
    const absl::Status status = cluster.RunSteps(step + 3);
    ASSERT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    const std::string expected = absl::StrCat(
        "worker ", cluster.job().crew.worker_names.at(poisoned), ": layer ",
        layer_at(step).name, ", step ", step, ": the gradient has ",
        kPoisons[seed % 4], " at element 0 of ", layer_at(step).parameters);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(expected));
  }
}

}  // namespace
}  // namespace nereus
