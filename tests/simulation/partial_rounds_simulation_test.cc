// Partial rounds lose no gradient and count none twice, in any order of arrival
// and whatever connections break. Workers are no further apart than the
// staleness allows.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/simulation/laws/law.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 150;
constexpr int64_t kSteps = 8;

SimulatedClusterOptions PartialJob(uint64_t seed) {
  Random random(seed ^ 0x7b1e);
  SimulatedClusterOptions options = RandomJob(seed);
  // With powers of two, means of small integers are exact.
  options.workers = 1 << random.Below(3);
  options.max_workers = options.workers;
  options.rules = PlanRules();
  UseExactSgd(options.job);
  options.job.optimizer_place = OptimizerPlace::kServer;
  options.job.deterministic = false;
  options.job.rounds.quorum = std::vector{Quorum::kMajority, Quorum::kSolo,
                                          Quorum::kEach}[random.Below(3)];
  options.job.rounds.staleness =
      std::vector<int64_t>{0, 1, 3, kStalenessMax}[random.Below(4)];
  if (options.job.rounds.quorum != Quorum::kEach && random.Chance(0.3)) {
    options.job.rounds.resync_every = 1 + static_cast<int64_t>(random.Below(4));
  }
  options.layer_time_max = absl::Microseconds(100 + random.Below(20000));
  return options;
}

// Checks for every element that the parameters and the open sums together have
// the sum of all gradients.
void ExpectNothingLost(const SimulatedCluster& cluster,
                       const Workload& workload) {
  const Job& job = cluster.job();
  const int workers = job.worker_count();
  for (const Chunk& chunk : job.placement.chunks()) {
    const Shard& shard = cluster.shard(chunk.shard);
    const ChunkRounds& rounds = shard.chunk(chunk.layer, chunk.index);
    const float* now = rounds.held().parameters.floats();
    const PartialRound& open = rounds.partial();
    std::vector<float> first(workload.layers[chunk.layer].parameters);
    workload.initialize(0, chunk.layer, absl::MakeSpan(first));
    for (int64_t i = 0; i < chunk.length; ++i) {
      const int64_t element = chunk.offset + i;
      const float applied = (first[element] - now[i]) /
                            ExactSgd().learning_rate *
                            static_cast<float>(workers);
      const bool begun = open.begun(i / kFrameElementsMax);
      const float buffered = begun ? open.sum().floats()[i] : 0.0f;
      ASSERT_EQ(applied + buffered,
                IntegerSum(workers, kSteps, chunk.layer, element))
          << "layer " << chunk.layer << ", element " << element << ": "
          << applied << " applied, " << buffered << " in the open sum";
    }
  }
}

TEST(PartialRoundsTest, AppliedAndBufferedGradientsAreAllThatWereProduced) {
  std::map<Quorum, int> runs;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    const SimulatedClusterOptions options = PartialJob(seed);
    const Workload workload = IntegerWorkload(MixedLayers());
    SimulatedCluster cluster(options, workload);
    cluster.set_patience(absl::Seconds(20));
    RandomFaults faults(seed, HarmlessFaults(), &cluster);
    ASSERT_EQ(cluster.RunSteps(kSteps), absl::OkStatus());
    ExpectNothingLost(cluster, workload);
    if (HasFatalFailure()) return;
    ++runs[options.job.rounds.quorum];
  }
  EXPECT_TRUE(runs.size() == 3 || TestSeeds(kSeeds).size() < 50);
}

// No two workers are more than `staleness` + 1 rounds apart. The 1 is there
// because a server counts a worker's step before it answers the worker.
class SpreadLaw final : public Law {
 public:
  SpreadLaw(int workers, int64_t staleness)
      : workers_(static_cast<size_t>(workers)), staleness_(staleness) {}

  absl::string_view name() const override { return "staleness is bounded"; }

  void Observe(const ClusterEvent& event) override {
    const auto* done = std::get_if<RoundDone>(&event);
    if (done == nullptr) return;
    rounds_[done->place.rank] = done->place.round;
    if (rounds_.size() < workers_) return;
    const auto [least, most] = std::minmax_element(
        rounds_.begin(), rounds_.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    most_ = std::max(most_, most->second - least->second);
    if (most->second - least->second <= staleness_ + 1) return;
    Breach(PlaceOf(done->place),
           absl::StrCat("worker ", most->first, " is at round ", most->second,
                        ", worker ", least->first, " at round ", least->second,
                        ", at most ", staleness_ + 1, " apart are right"));
  }

  // Returns the largest distance of two workers so far, in rounds.
  int64_t most() const { return most_; }

 private:
  const size_t workers_;
  const int64_t staleness_;
  std::map<int, int64_t> rounds_;  // Last round of each worker, by rank.
  int64_t most_ = 0;
};

// Only the staleness holds fast workers back, so they get as far ahead as it
// allows.
TEST(PartialRoundsTest, WorkersAreAsFarApartAsStalenessAllows) {
  for (const Quorum quorum : {Quorum::kSolo, Quorum::kEach}) {
    for (const int64_t staleness : {0, 1, 4}) {
      SimulatedClusterOptions options;
      options.workers = 3;
      options.shards = 2;
      options.job.rounds.quorum = quorum;
      options.job.rounds.staleness = staleness;
      options.layer_time_max = absl::Milliseconds(1);
      SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 1));
      const SpreadLaw& spread = cluster.laws().Add(
          std::make_unique<SpreadLaw>(options.workers, staleness));
      ASSERT_TRUE(cluster.RunSteps(1).ok());
      cluster.faults().SlowDown(cluster.live_workers()[1], 50);
      ASSERT_EQ(cluster.RunSteps(12), absl::OkStatus());
      EXPECT_GE(spread.most(), staleness);
    }
  }
}

// After a round of --resync all workers have the same parameters.
TEST(PartialRoundsTest, ResynchronisedReplicasAreEqual) {
  SimulatedClusterOptions options;
  options.workers = 4;
  options.shards = 3;
  options.job.rounds.quorum = Quorum::kSolo;
  options.job.rounds.resync_every = 3;
  const std::vector<LayerSpec> layers = MixedLayers();
  SimulatedCluster cluster(options, RandomWorkload(layers, 2));
  for (const int64_t steps : {3, 6, 9}) {
    ASSERT_TRUE(cluster.RunSteps(steps).ok());
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const int index = static_cast<int>(layer);
      const auto first = cluster.worker(0).parameters(index);
      for (int rank = 1; rank < 4; ++rank) {
        const auto other = cluster.worker(rank).parameters(index);
        EXPECT_TRUE(std::equal(first.begin(), first.end(), other.begin()))
            << layers[layer].name << ", worker " << rank << ", step " << steps;
      }
    }
  }
}

// Rounds still close after workers have died, and no worker waits without end.
TEST(PartialRoundsTest, DeadWorkersHoldUpNoWorker) {
  int lost = 0;
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = PartialJob(seed);
    options.workers = 2 + static_cast<int>(seed % 4);
    options.max_workers = options.workers + 3;
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    cluster.set_patience(absl::Seconds(20));
    const RandomFaults faults(seed, WorkerFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    lost += IsLost(status);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
  EXPECT_LE(lost, 6);
}

// All other workers die at a drawn moment while a worker joins. The new worker
// continues alone, and gets an answer to each of its steps.
TEST(PartialRoundsTest, WorkerThatJoinsMayOutliveAllOthers) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    SimulatedClusterOptions options = PartialJob(seed);
    options.workers = 1 + static_cast<int>(random.Below(3));
    options.max_workers = options.workers + 1;
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    FaultScript& faults = cluster.faults();
    cluster.set_patience(absl::Seconds(20));
    ASSERT_TRUE(cluster.RunSteps(1 + random.Below(3)).ok());
    const std::vector<ProcessId> older = cluster.live_workers();
    faults.SlowDown(older[0], 20);
    faults.StartWorker();
    cluster.AdvanceBy(absl::Milliseconds(random.Below(200)));
    for (const ProcessId process : older) faults.Crash(process);
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
}

}  // namespace
}  // namespace nereus
