// Shards and coordinators that die and are replaced, and disks that fail: laws
// 1, 4 and 7 of docs/architecture.md, on the production machines.

#include "gtest/gtest.h"
#include "tests/testing/random_faults.h"
#include "tests/testing/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 100;
constexpr int64_t kSteps = 8;
constexpr absl::Duration kPatience = absl::Seconds(40);

SimulatedClusterOptions DurableJob(uint64_t seed) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = 1 + static_cast<int>(seed % 4);
  options.max_workers = options.workers + 3;
  options.has_disk = true;
  options.job.checkpoint_every = 1 + static_cast<int64_t>(seed / 4 % 3);
  return options;
}

TEST(RestartSimulationTest, TheJobGoesOnWhateverDies) {
  int lost = 0;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedCluster cluster(DurableJob(seed),
                             RandomWorkload(MixedLayers(), seed));
    cluster.set_patience(kPatience);
    const RandomFaults faults(seed, AllFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    lost += IsLost(status);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
  // A shard may die before the first checkpoint is whole.
  EXPECT_LE(lost, 1 + static_cast<int>(TestSeeds(kSeeds).size()) / 8);
}

TEST(RestartSimulationTest, ALostShardCostsTheStepsSinceTheLastCheckpoint) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJob(seed);
    options.job.checkpoint_every = 3;
    options.rules.cost = CostKind::kBytes;  // Its base is the checkpoint's.
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(5).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    ASSERT_EQ(cluster.checkpoints_made(), 2);  // Of rounds 0 and 2.
    const int shard = static_cast<int>(seed) % options.shards;
    cluster.Crash(cluster.shard_process(shard));
    cluster.StartShard(shard);
    // Where all layers go between workers, these might be done before anybody
    // misses it.
    cluster.AdvanceBy(absl::Seconds(2));
    const absl::Status status = cluster.RunSteps(8);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(cluster.job().base_round, 2);
    EXPECT_EQ(cluster.job().contributions_before, 3 * options.workers);
  }
}

TEST(RestartSimulationTest, TrainingGoesOnWhileTheCoordinatorIsAway) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJob(seed);
    options.rules.cost = CostKind::kBytes;  // Plans do not change.
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.CrashCoordinator();
    absl::Status status = cluster.RunSteps(6);
    ASSERT_TRUE(status.ok()) << status;
    cluster.RestartCoordinator();
    status = cluster.RunSteps(8);
    ASSERT_TRUE(status.ok()) << status;
    cluster.AdvanceBy(absl::Seconds(6));
    // All have come back, and nobody was lost.
    EXPECT_EQ(cluster.job().worker_count(),
              static_cast<int>(cluster.live_workers().size()));
    EXPECT_EQ(cluster.job().base_round, kInitialRound);
    EXPECT_EQ(cluster.job().epoch, 2u);
  }
}

TEST(RestartSimulationTest, ACoordinatorThatStoodStillCountsNobodyAsDead) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJob(seed);
    options.rules.cost = CostKind::kBytes;  // Plans do not change.
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.PauseCoordinator(absl::Seconds(6));
    cluster.AdvanceBy(absl::Seconds(1));
    cluster.BreakSession(cluster.live_workers()[0]);
    const absl::Status status = cluster.RunSteps(8);
    ASSERT_TRUE(status.ok()) << status;
    cluster.AdvanceBy(absl::Seconds(10));
    EXPECT_EQ(cluster.job().epoch, 1u);
  }
}

TEST(RestartSimulationTest, ACheckpointThatIsAskedForIsMade) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJob(seed);
    options.job.checkpoint_every = 0;
    options.rules.cost = CostKind::kBytes;  // No epoch that would make another.
    SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    EXPECT_EQ(cluster.checkpoints_made(), 1);  // The first one is made anyway.
    ASSERT_TRUE(cluster.RequestCheckpoint().ok());
    ASSERT_TRUE(cluster.RunSteps(6).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    EXPECT_EQ(cluster.checkpoints_made(), 2);
    EXPECT_FALSE(cluster.coordinator()->checkpoint_wanted());
  }
}

TEST(RestartSimulationTest, WithoutACheckpointALostShardEndsTheJob) {
  SimulatedClusterOptions options = DurableJob(1);
  options.has_disk = false;
  options.job.checkpoint_every = 0;
  SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 1));
  ASSERT_TRUE(cluster.RunSteps(2).ok());
  cluster.Crash(cluster.shard_process(0));
  const absl::Status status = cluster.RunSteps(4);
  EXPECT_TRUE(IsLost(status)) << status;
}

}  // namespace
}  // namespace nereus
