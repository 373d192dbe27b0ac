// Servers and coordinators die and are replaced, and disks fail.

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "tests/simulation/random_faults.h"
#include "tests/simulation/simulated_jobs.h"
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

// Returns a DurableJob whose plans do not change: each epoch is one of a
// failure or a request, and each base round is that of a checkpoint.
SimulatedClusterOptions DurableJobOfOnePlan(uint64_t seed) {
  SimulatedClusterOptions options = DurableJob(seed);
  options.rules.cost = CostKind::kBytes;
  return options;
}

TEST(RestartSimulationTest, JobGoesOnWhateverDies) {
  int lost = 0;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedCluster cluster(DurableJob(seed), MixedWorkload(seed));
    cluster.set_patience(kPatience);
    const RandomFaults faults(seed, AllFaults(), &cluster);
    const absl::Status status = cluster.RunSteps(kSteps);
    lost += IsLost(status);
    ASSERT_TRUE(status.ok() || IsLost(status)) << status;
  }
  // A server that dies before the first checkpoint is whole costs the job.
  EXPECT_LE(lost, 1 + static_cast<int>(TestSeeds(kSeeds).size()) / 5);
}

TEST(RestartSimulationTest, LostShardCostsTheStepsSinceTheLastCheckpoint) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    options.job.checkpoint_every = 3;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(5).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    ASSERT_EQ(cluster.disk().checkpoints_made(), 2);  // Rounds 0 and 2.
    const int shard = static_cast<int>(seed) % options.shards;
    cluster.faults().Crash(cluster.processes().shard_process(shard));
    cluster.faults().StartShard(shard);
    // If all layers are worker-owned, the workers could do all steps before a
    // member misses the server.
    cluster.AdvanceBy(absl::Seconds(2));
    ASSERT_EQ(cluster.RunSteps(8), absl::OkStatus());
    EXPECT_EQ(cluster.job().history.base_round, 2);
    EXPECT_EQ(cluster.job().history.contributions_before, 3 * options.workers);
  }
}

// A byte of the newest checkpoint changes long after it was written.
TEST(RestartSimulationTest, CheckpointThatRotsIsPassedOver) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    options.job.checkpoint_every = 3;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    FaultScript& faults = cluster.faults();
    cluster.set_patience(kPatience);
    ASSERT_TRUE(cluster.RunSteps(5).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    ASSERT_EQ(cluster.disk().newest_round(), 2);
    ASSERT_TRUE(faults.RotCheckpoint(seed * 7919));
    for (int shard = 0; shard < options.shards; ++shard) {
      faults.Crash(cluster.processes().shard_process(shard));
      faults.StartShard(shard);
    }
    cluster.AdvanceBy(absl::Seconds(4));
    ASSERT_EQ(cluster.RunSteps(8), absl::OkStatus());
    EXPECT_EQ(cluster.job().history.base_round, 0);
    EXPECT_EQ(cluster.job().history.contributions_before, options.workers);
    // No server has ended for it, and the job saves the round again.
    EXPECT_EQ(cluster.job().epoch, 3u);
    EXPECT_TRUE(cluster.Finish().ok());
  }
}

TEST(RestartSimulationTest, JobWithoutAWholeCheckpointIsLost) {
  SimulatedClusterOptions options = DurableJobOfOnePlan(3);
  options.job.checkpoint_every = 0;
  SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 3));
  FaultScript& faults = cluster.faults();
  ASSERT_TRUE(cluster.RunSteps(3).ok());
  cluster.AdvanceBy(absl::Seconds(1));
  const auto list = ListCheckpoints(cluster.disk().storage());
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->complete.size(), 1u);
  ASSERT_TRUE(cluster.RunSteps(4).ok());
  cluster.AdvanceBy(absl::Seconds(1));
  faults.RequestCheckpoint().IgnoreError();
  ASSERT_TRUE(cluster.RunSteps(7).ok());
  cluster.AdvanceBy(absl::Seconds(1));
  ASSERT_TRUE(faults.RotCheckpoint(1));
  const int64_t newest = cluster.disk().newest_round();
  for (int shard = 0; shard < options.shards; ++shard) {
    faults.Crash(cluster.processes().shard_process(shard));
  }
  // The older one is gone, too.
  ASSERT_TRUE(RemoveCheckpoint(cluster.disk().storage(), 0).ok());
  for (int shard = 0; shard < options.shards; ++shard) {
    faults.StartShard(shard);
  }
  const absl::Status status = cluster.RunSteps(12);
  EXPECT_TRUE(IsLost(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(),
                                absl::StrCat("that of round ", newest, ": ")))
      << status;
}

// Training went on while the disk hung, and the job then loses a shard.
TEST(RestartSimulationTest, ManifestThatHangsCostsALeaseAndNotTheJob) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    options.job.checkpoint_every = 3;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    FaultScript& faults = cluster.faults();
    cluster.set_patience(kPatience);
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    faults.HangManifestsFor(4 * options.lease);
    ASSERT_TRUE(cluster.RunSteps(5).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    ASSERT_EQ(cluster.disk().newest_round(), 0);
    const int shard = static_cast<int>(seed) % options.shards;
    faults.Crash(cluster.processes().shard_process(shard));
    faults.StartShard(shard);
    cluster.AdvanceBy(2 * options.lease);
    EXPECT_EQ(cluster.job().history.base_round, 0);
    ASSERT_EQ(cluster.RunSteps(12), absl::OkStatus());
    cluster.AdvanceBy(4 * options.lease);
    // The late manifest is gone, and the job has made the checkpoint again.
    const auto list = ListCheckpoints(cluster.disk().storage());
    ASSERT_TRUE(list.ok());
    for (const Manifest& manifest : list->complete) {
      if (manifest.round == 0) continue;
      EXPECT_FALSE(absl::StrContains(manifest.files[0].name, "epoch-1"))
          << manifest.files[0].name;
    }
    EXPECT_TRUE(cluster.Finish().ok());
  }
}

TEST(RestartSimulationTest, TrainingGoesOnWhileTheCoordinatorIsAway) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    options.gathers = false;  // Values are gathered by the coordinator.
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.faults().CrashCoordinator();
    ASSERT_EQ(cluster.RunSteps(6), absl::OkStatus());
    cluster.faults().RestartCoordinator();
    ASSERT_EQ(cluster.RunSteps(8), absl::OkStatus());
    cluster.AdvanceBy(absl::Seconds(6));
    // All members are back, and none was lost.
    EXPECT_EQ(cluster.job().worker_count(),
              static_cast<int>(cluster.live_workers().size()));
    EXPECT_EQ(cluster.job().history.base_round, kInitialRound);
    EXPECT_EQ(cluster.job().epoch, 2u);
  }
}

TEST(RestartSimulationTest, CoordinatorThatStoodStillCountsNoMemberAsDead) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.faults().PauseCoordinator(absl::Seconds(6));
    cluster.AdvanceBy(absl::Seconds(1));
    cluster.faults().BreakSession(cluster.live_workers()[0]);
    ASSERT_EQ(cluster.RunSteps(8), absl::OkStatus());
    cluster.AdvanceBy(absl::Seconds(10));
    EXPECT_EQ(cluster.job().epoch, 1u);
  }
}

// The question for reports waits for the save. No member owes an answer before
// it is asked.
TEST(RestartSimulationTest, NobodyCountsAsDeadWhileASaveHangs) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    const std::vector<ProcessId> workers = cluster.live_workers();
    cluster.faults().HangSavesFor(3 * options.lease);
    ASSERT_TRUE(cluster.faults().RequestCheckpoint().ok());
    ASSERT_EQ(cluster.RunSteps(8), absl::OkStatus());
    cluster.AdvanceBy(4 * options.lease);
    EXPECT_EQ(cluster.live_workers(), workers);
    EXPECT_EQ(cluster.job().epoch, 2u);
    EXPECT_TRUE(cluster.RunSteps(12).ok());
  }
}

TEST(RestartSimulationTest, RequestedCheckpointIsMade) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    options.job.checkpoint_every = 0;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    EXPECT_EQ(cluster.disk().checkpoints_made(),
              1);  // The first one is made anyway.
    ASSERT_TRUE(cluster.faults().RequestCheckpoint().ok());
    // The request is saved before any member hears of it.
    cluster.AdvanceBy(absl::Seconds(1));
    ASSERT_TRUE(cluster.RunSteps(6).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    EXPECT_EQ(cluster.disk().checkpoints_made(), 2);
    EXPECT_FALSE(cluster.coordinator()->checkpoints().wanted());
  }
}

// Returns true if the newest checkpoint is the last one that is due when the
// workers have done `step`.
bool LastIsWhole(SimulatedCluster& cluster, int64_t step) {
  const auto& newest = cluster.coordinator()->checkpoints().newest();
  return newest.has_value() &&
         newest->round == cluster.job().LastCheckpoint(step);
}

TEST(RestartSimulationTest, LastCheckpointIsWholeWhenTheJobIsFinished) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJobOfOnePlan(seed);
    options.disk_time_max = absl::Seconds(2);  // Longer than a step.
    SimulatedCluster cluster(options, MixedWorkload(seed));
    ASSERT_TRUE(cluster.RunSteps(6).ok());
    for (const ProcessId worker : cluster.live_workers()) {
      cluster.faults().LeaveSoon(worker);
    }
    cluster.AdvanceBy(absl::Seconds(20));
    ASSERT_EQ(cluster.coordinator()->state(), JobState::kFinished);
    EXPECT_TRUE(LastIsWhole(cluster, 5));
  }
}

// The last step may be the switch round of a plan. The workers have then
// already handed their layers over to the shards.
TEST(RestartSimulationTest, LastStepIsSavedWhateverThePlanIs) {
  int last_of_plan = 0;
  for (const uint64_t seed : TestSeeds(120)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJob(seed);
    options.job.checkpoint_every = 0;
    options.rules = {};
    options.rules.cost = CostKind::kTime;
    SimulatedCluster cluster(options, MixedWorkload(seed));
    const auto steps = static_cast<int64_t>(1 + seed % 8);
    ASSERT_TRUE(cluster.RunSteps(steps).ok());
    for (const ProcessId worker : cluster.live_workers()) {
      cluster.faults().LeaveSoon(worker);
    }
    cluster.AdvanceBy(absl::Seconds(10));
    ASSERT_EQ(cluster.coordinator()->state(), JobState::kFinished);
    last_of_plan += cluster.job().switch_round == steps - 1;
    const auto& newest = cluster.coordinator()->checkpoints().newest();
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->round, steps - 1);
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(last_of_plan, 0);
  }
}

bool KnowsThatAllHaveLeft(SimulatedCluster& cluster) {
  const JobStatus status =
      cluster.coordinator()->Status(cluster.events().now());
  return absl::c_all_of(status.members, [](const auto& member) {
    return member.id.role != Role::kWorker || member.left;
  });
}

// All steps are done. Whatever dies now, the job soon ends as finished.
TEST(RestartSimulationTest, FailureAfterTheLastStepDoesNotHoldTheJobUp) {
  int whole = 0;
  constexpr int kFaults = 6;
  const std::vector<uint64_t> seeds = TestSeeds(120);
  for (const uint64_t seed : seeds) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJob(seed);
    options.disk_time_max = absl::Milliseconds(500);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    FaultScript& faults = cluster.faults();
    ASSERT_TRUE(cluster.RunSteps(6).ok());
    const std::vector<ProcessId> workers = cluster.live_workers();
    const ProcessId shard = cluster.processes().shard_process(0);
    for (const ProcessId worker : workers) faults.LeaveSoon(worker);
    while (!KnowsThatAllHaveLeft(cluster)) {
      cluster.AdvanceBy(absl::Milliseconds(1));
    }
    cluster.AdvanceBy(absl::Milliseconds(static_cast<int64_t>(seed % 97)));
    const ProcessId worker = workers[seed % workers.size()];
    switch (seed / 2 % kFaults) {
      case 0:
        for (const ProcessId each : workers) faults.Crash(each);
        break;
      case 1:
        faults.Crash(worker);
        break;
      case 2:
        faults.Crash(shard);
        faults.After(absl::Seconds(1), [&] { faults.StartShard(0); });
        break;
      case 3:
        faults.BreakConnection(worker, shard);
        break;
      case 4:
        faults.BreakSession(worker);
        break;
      default:
        faults.CrashCoordinator();
        cluster.AdvanceBy(absl::Seconds(1));
        faults.RestartCoordinator();
    }
    cluster.AdvanceBy(2 * options.lease + absl::Seconds(10));
    ASSERT_NE(cluster.coordinator(), nullptr);
    EXPECT_EQ(cluster.coordinator()->state(), JobState::kFinished);
    whole += LastIsWhole(cluster, 5);
  }
  EXPECT_GT(whole, static_cast<int>(seeds.size()) / 2);
}

// A backup takes over; without backups the job goes back to its last
// checkpoint.
TEST(RestartSimulationTest, ServerThatIsLostAtTheEndCostsNoModel) {
  for (const uint64_t seed : TestSeeds(120)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedClusterOptions options = DurableJob(seed);
    options.shards = 2;
    options.job.backup = seed % 2 == 0;
    options.disk_time_max = absl::Milliseconds(500);
    SimulatedCluster cluster(options, MixedWorkload(seed));
    FaultScript& faults = cluster.faults();
    ASSERT_TRUE(cluster.RunSteps(6).ok());
    cluster.AdvanceBy(absl::Seconds(2));  // The first checkpoint is written.
    for (const ProcessId worker : cluster.live_workers()) {
      faults.LeaveSoon(worker);
    }
    while (!KnowsThatAllHaveLeft(cluster)) {
      cluster.AdvanceBy(absl::Milliseconds(1));
    }
    cluster.AdvanceBy(absl::Milliseconds(static_cast<int64_t>(seed * 7 % 97)));
    const int shard = static_cast<int>(seed / 2 % 2);
    faults.Crash(cluster.processes().shard_process(shard));
    faults.After(absl::Seconds(1), [&] { faults.StartShard(shard); });
    cluster.AdvanceBy(options.lease + absl::Seconds(10));
    ASSERT_NE(cluster.coordinator(), nullptr);
    EXPECT_EQ(cluster.coordinator()->state(), JobState::kFinished);
    EXPECT_FALSE(cluster.coordinator()->lacks_last_checkpoint());
    EXPECT_TRUE(LastIsWhole(cluster, 5));
  }
}

TEST(RestartSimulationTest, LostShardWithoutACheckpointEndsTheJob) {
  SimulatedClusterOptions options = DurableJob(1);
  options.has_disk = false;
  options.job.checkpoint_every = 0;
  SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), 1));
  ASSERT_TRUE(cluster.RunSteps(2).ok());
  cluster.faults().Crash(cluster.processes().shard_process(0));
  const absl::Status status = cluster.RunSteps(4);
  EXPECT_TRUE(IsLost(status)) << status;
}

}  // namespace
}  // namespace nereus
