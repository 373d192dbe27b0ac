// All laws hold in jobs with any features under any faults. Each seed draws the
// features of its job, the faults, and their moments. So each seed tries
// another combination.

#include <map>
#include <set>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/simulation/drawn_features.h"
#include "tests/simulation/laws/counted_once_law.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 500;
constexpr int64_t kSteps = 10;
constexpr int64_t kQuietSteps = 3;

// Time of the longest fault and of the recovery from it.
constexpr absl::Duration kPatience = absl::Seconds(40);

// Runs the job of a seed from its start, through all faults, to its end.
class SwarmRun {
 public:
  explicit SwarmRun(uint64_t seed)
      : options_(DrawFeatures(seed)),
        cluster_(options_,
                 WithLearntRows(
                     WithDenseGradients(
                         seed % 2 == 0 ? RandomWorkload(MixedLayers(), seed)
                                       : SignedWorkload(),
                         seed),
                     seed / 2)),
        faults_(seed, options_.has_disk ? AllFaults() : WorkerFaults(),
                &cluster_) {
    cluster_.set_patience(kPatience);
  }

  absl::Status Run() {
    const absl::Status status = cluster_.RunSteps(kSteps);
    if (!status.ok()) return status;
    faults_.Stop();
    return RunInPeace();
  }

  const RandomFaults& faults() const { return faults_; }
  const SimulatedCluster& cluster() const { return cluster_; }
  // Number of means that CountedOnceLaw has checked.
  int64_t contributions_checked() {
    const auto* const law = cluster_.laws().Find<CountedOnceLaw>();
    return law == nullptr ? 0 : law->checked_count();
  }

 private:
  // Continues the job without faults. Checks that all live workers are in the
  // job, that every requested checkpoint is made, and that the job ends.
  absl::Status RunInPeace() {
    cluster_.AdvanceBy(options_.lease + absl::Seconds(10));
    if (cluster_.live_workers().empty()) return absl::OkStatus();
    int64_t steps = kSteps;
    // The coordinator may die once more while it writes the requested
    // checkpoint. Another epoch then makes one of a later round (seed 1568).
    const auto wanted = [&] {
      return cluster_.coordinator() != nullptr &&
             cluster_.coordinator()->checkpoints().wanted();
    };
    for (int i = 0; i < 2 || (i < 4 && wanted()); ++i) {
      steps += kQuietSteps;
      const absl::Status status = cluster_.RunSteps(steps);
      if (!status.ok()) return status;
      cluster_.AdvanceBy(absl::Seconds(5));
    }
    if (cluster_.live_workers().empty()) return absl::OkStatus();
    if (cluster_.job().worker_count() !=
        static_cast<int>(cluster_.live_workers().size())) {
      return InternalError("the job has other workers than those that live");
    }
    if (cluster_.coordinator() == nullptr) {
      return InternalError("there is no coordinator");
    }
    if (wanted()) {
      return InternalError("the checkpoint that was asked for is missing");
    }
    // If a worker joined while the others leave, it would continue the job
    // (seed 1690).
    faults_.StartNoWorkers();
    return cluster_.Finish();
  }

  const SimulatedClusterOptions options_;
  SimulatedCluster cluster_;
  RandomFaults faults_;
};

TEST(SwarmSimulationTest, LawsHoldUnderAnyFaults) {
  int lost = 0;
  int failed = 0;
  int64_t contributions = 0;
  std::map<Fault, int> strikes;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SwarmRun run(seed);
    const absl::Status status = run.Run();
    lost += IsLost(status);
    if (!status.ok() && !IsLost(status)) ++failed;
    EXPECT_TRUE(status.ok() || IsLost(status)) << status;
    contributions += run.contributions_checked();
    for (const auto& [fault, count] : run.faults().strikes()) {
      strikes[fault] += count;
    }
    if (failed == 20) break;
  }
  if (!TriesAllSeeds()) return;
  for (const Fault fault :
       {Fault::kCheckpointRots, Fault::kSharesHang, Fault::kReadsAreSlow}) {
    EXPECT_GE(strikes[fault], 10) << "fault " << static_cast<int>(fault);
  }
  EXPECT_LE(lost, kSeeds / 7);
  EXPECT_GT(contributions, kSeeds * 10);
  for (const auto faults : {AllFaults(), HostFaults()}) {
    for (const Fault fault : faults) {
      EXPECT_GE(strikes[fault], 10) << "fault " << static_cast<int>(fault);
    }
  }
}

TEST(SwarmSimulationTest, SameSeedGivesTheSameRunToTheLastEvent) {
  std::set<uint64_t> digests;
  constexpr uint64_t kRepeated = 20;
  for (uint64_t seed = 0; seed < kRepeated; ++seed) {
    SCOPED_TRACE(ReplayHint(seed));
    SwarmRun run(seed);
    SwarmRun again(seed);
    EXPECT_EQ(run.Run(), again.Run());
    EXPECT_EQ(run.cluster().digest(), again.cluster().digest());
    EXPECT_EQ(run.cluster().events().events_run(),
              again.cluster().events().events_run());
    digests.insert(run.cluster().digest());
  }
  EXPECT_EQ(digests.size(), kRepeated);
}

}  // namespace
}  // namespace nereus
