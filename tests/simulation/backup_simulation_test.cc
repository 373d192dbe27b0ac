// Each shard has a backup on another server, so a lost server costs no step.

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr int kSeeds = 200;
constexpr absl::Duration kPatience = absl::Seconds(40);

// Returns a job with backups and without a disk. Lost values can come back from
// backups only.
SimulatedClusterOptions JobWithBackups(uint64_t seed) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = 1 + static_cast<int>(seed % 4);
  options.max_workers = options.workers + 3;
  options.shards = 2 + static_cast<int>(seed / 4 % 3);
  options.job.backup = true;
  // Servers die twice within seconds, and must be back before the next death.
  options.join_share = 0;
  return options;
}

bool AllAreBack(const SimulatedCluster& cluster) {
  const std::vector<ShardServers> first =
      FirstShardServers(cluster.job().shards(), /*backup=*/true);
  return cluster.job().shard_servers == first;
}

// Plans do not change here: right after a change, a backup does not have the
// values that the workers have handed over.
TEST(BackupSimulationTest, LostServerCostsNoStep) {
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = JobWithBackups(seed);
    options.rules.cost = CostKind::kBytes;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    FaultScript& faults = cluster.faults();
    Random random(seed);
    int64_t steps = 0;
    for (int lost = 0; lost < 3; ++lost) {
      steps += 1 + static_cast<int64_t>(random.Below(3));
      ASSERT_EQ(cluster.RunSteps(steps), absl::OkStatus());
      const int server = static_cast<int>(random.Below(cluster.job().shards()));
      // The server dies in the middle of a step.
      const absl::Duration now = cluster.events().now() - absl::UnixEpoch();
      faults.At(now + random.Uniform() * absl::Milliseconds(5), [&, server] {
        faults.Crash(cluster.processes().shard_process(server));
      });
      faults.At(now + random.Uniform() * absl::Seconds(3),
                [&, server] { faults.StartShard(server); });
      ASSERT_EQ(cluster.RunSteps(++steps), absl::OkStatus());
      cluster.AdvanceBy(absl::Seconds(8));
      EXPECT_TRUE(AllAreBack(cluster));
    }
    EXPECT_EQ(cluster.job().history.base_round, kInitialRound);
  }
}

// Each server in turn: the rolling restart of all servers of a job.
TEST(BackupSimulationTest, ServersThatLeaveCostNoStepAndNoPause) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = JobWithBackups(seed);
    options.rules.cost = CostKind::kBytes;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    int64_t steps = 2;
    ASSERT_TRUE(cluster.RunSteps(steps).ok());
    for (int shard = 0; shard < options.shards; ++shard) {
      const ProcessId server = cluster.processes().shard_process(shard);
      const absl::Time asked_at = cluster.events().now();
      ASSERT_TRUE(cluster.faults().AskToLeave(server));
      ASSERT_EQ(cluster.RunSteps(steps += 2), absl::OkStatus());
      EXPECT_LT(cluster.events().now() - asked_at, absl::Milliseconds(600));
      cluster.AdvanceBy(absl::Seconds(8));
      EXPECT_FALSE(cluster.processes().alive(server));
      EXPECT_TRUE(AllAreBack(cluster));
    }
    EXPECT_EQ(cluster.job().history.base_round, kInitialRound);
  }
}

TEST(BackupSimulationTest, JobGoesOnWithASingleServerUntilAnotherComes) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = JobWithBackups(seed);
    options.rules.cost = CostKind::kBytes;
    options.shards = 2;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    FaultScript& faults = cluster.faults();
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    const int lost = static_cast<int>(seed % 2);
    faults.Crash(cluster.processes().shard_process(lost));
    ASSERT_EQ(cluster.RunSteps(6), absl::OkStatus());
    // If all layers go by rings, it takes a while until a member misses the
    // server.
    cluster.AdvanceBy(absl::Seconds(2));
    for (const ShardServers& servers : cluster.job().shard_servers) {
      EXPECT_EQ(servers, (ShardServers{1 - lost, -1, false}));
    }
    faults.StartShard(lost);
    cluster.AdvanceBy(absl::Seconds(4));
    EXPECT_TRUE(AllAreBack(cluster));
    // Now the other server may die.
    faults.Crash(cluster.processes().shard_process(1 - lost));
    ASSERT_EQ(cluster.RunSteps(10), absl::OkStatus());
  }
}

TEST(BackupSimulationTest, LostShardWithoutABackupEndsTheJob) {
  SimulatedClusterOptions options = JobWithBackups(1);
  options.shards = 2;
  SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 1));
  ASSERT_TRUE(cluster.RunSteps(2).ok());
  cluster.faults().Crash(cluster.processes().shard_process(0));
  cluster.faults().Crash(cluster.processes().shard_process(1));
  const absl::Status status = cluster.RunSteps(4);
  EXPECT_TRUE(IsLost(status)) << status;
}

// The job has checkpoints too, because two servers may die at the same time.
TEST(BackupSimulationTest, JobGoesOnWhateverDies) {
  int lost = 0;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = JobWithBackups(seed);
    options.has_disk = true;
    options.job.checkpoint_every = static_cast<int64_t>(seed / 12 % 4);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    cluster.set_patience(kPatience);
    const RandomFaults faults(seed, AllFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(8);
    lost += IsLost(status);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
  EXPECT_LE(lost, 1 + static_cast<int>(TestSeeds(kSeeds).size()) / 8);
}

}  // namespace
}  // namespace nereus
