// Rounds that close without everybody: nothing that a worker has produced is
// lost or counted twice, whatever the order of arrival and whichever
// connections break; and the bounds on how far workers may be apart.

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"
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
  // Powers of two: means of small integers are exact.
  options.workers = 1 << random.Below(3);
  options.max_workers = options.workers;
  options.rules = PlanRules();
  options.job.optimizer = ExactSgd();
  options.job.optimizer_place = OptimizerPlace::kServer;
  options.job.deterministic = false;
  options.job.quorum = std::vector{Quorum::kMajority, Quorum::kSolo,
                                   Quorum::kEach}[random.Below(3)];
  options.job.staleness =
      std::vector<int64_t>{0, 1, 3, kStalenessMax}[random.Below(4)];
  if (options.job.quorum != Quorum::kEach && random.Chance(0.3)) {
    options.job.resync_every = 1 + static_cast<int64_t>(random.Below(4));
  }
  options.layer_time_max = absl::Microseconds(100 + random.Below(20000));
  return options;
}

// What all workers have produced of one element.
float Produced(int workers, int layer, int64_t element) {
  float sum = 0;
  for (int rank = 0; rank < workers; ++rank) {
    for (int64_t step = 0; step < kSteps; ++step) {
      sum += IntegerGradient(rank, step, layer, element);
    }
  }
  return sum;
}

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
      ASSERT_EQ(applied + buffered, Produced(workers, chunk.layer, element))
          << "layer " << chunk.layer << ", element " << element << ": "
          << applied << " applied, " << buffered << " buffered";
    }
  }
}

TEST(PartialRoundsTest, AppliedAndBufferedIsWhatWasProduced) {
  std::map<Quorum, int> runs;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    const SimulatedClusterOptions options = PartialJob(seed);
    const Workload workload = IntegerWorkload(MixedLayers());
    SimulatedCluster cluster(options, workload);
    cluster.set_patience(absl::Seconds(20));
    RandomFaults faults(seed, HarmlessFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok()) << status;
    ExpectNothingLost(cluster, workload);
    if (HasFatalFailure()) return;
    ++runs[options.job.quorum];
  }
  EXPECT_TRUE(runs.size() == 3 || TestSeeds(kSeeds).size() < 50);
}

// Nobody is further ahead than that, and somebody is as far: the bound is the
// only thing that holds the fast back.
TEST(PartialRoundsTest, WorkersAreApartAsFarAsTheyMay) {
  for (const Quorum quorum : {Quorum::kSolo, Quorum::kEach}) {
    for (const int64_t staleness : {0, 1, 4}) {
      SimulatedClusterOptions options;
      options.workers = 3;
      options.shards = 2;
      options.job.quorum = quorum;
      options.job.staleness = staleness;
      options.layer_time_max = absl::Milliseconds(1);
      SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 1));
      std::map<int, int64_t> done;
      int64_t apart = 0;
      cluster.set_on_outcome([&](int rank, int, int64_t round) {
        done[rank] = round;
        if (done.size() < 3) return;
        const auto [least, most] = std::minmax_element(
            done.begin(), done.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
        apart = std::max(apart, most->second - least->second);
      });
      ASSERT_TRUE(cluster.RunSteps(1).ok());
      cluster.SlowDown(cluster.live_workers()[1], 50);
      ASSERT_TRUE(cluster.RunSteps(12).ok());
      // The slow one's step is counted before it is answered.
      EXPECT_GE(apart, staleness);
      EXPECT_LE(apart, staleness + 1);
    }
  }
}

// Every worker's parameters after such a round are the same.
TEST(PartialRoundsTest, ResynchronisedReplicasAreEqual) {
  SimulatedClusterOptions options;
  options.workers = 4;
  options.shards = 3;
  options.job.quorum = Quorum::kSolo;
  options.job.resync_every = 3;
  const std::vector<LayerSpec> layers = MixedLayers();
  SimulatedCluster cluster(options, RandomWorkload(layers, 2));
  for (const int64_t steps : {3, 6, 9}) {
    ASSERT_TRUE(cluster.RunSteps(steps).ok());
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const int index = static_cast<int>(layer);
      const auto first = cluster.parameters(0, index);
      for (int rank = 1; rank < 4; ++rank) {
        const auto other = cluster.parameters(rank, index);
        EXPECT_TRUE(std::equal(first.begin(), first.end(), other.begin()))
            << layers[layer].name << ", worker " << rank << ", step " << steps;
      }
    }
  }
}

// The same whatever dies: rounds go on, and nobody hangs.
TEST(PartialRoundsTest, DeadWorkersHangNobody) {
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

// One that joins, at any moment of its coming, may outlive all others: it goes
// on alone, and each of its steps is answered.
TEST(PartialRoundsTest, AJoinerMayOutliveAllOthers) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    SimulatedClusterOptions options = PartialJob(seed);
    options.workers = 1 + static_cast<int>(random.Below(3));
    options.max_workers = options.workers + 1;
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    cluster.set_patience(absl::Seconds(20));
    ASSERT_TRUE(cluster.RunSteps(1 + random.Below(3)).ok());
    const std::vector<ProcessId> older = cluster.live_workers();
    cluster.SlowDown(older[0], 20);
    cluster.StartWorker();
    cluster.AdvanceBy(absl::Milliseconds(random.Below(200)));
    for (const ProcessId process : older) cluster.Crash(process);
    const absl::Status status = cluster.RunSteps(kSteps);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
}

}  // namespace
}  // namespace nereus
