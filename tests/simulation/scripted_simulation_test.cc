// Scenarios of faults, event by event: what is drawn elsewhere, and each defect
// that was found there, in its smallest form.

#include <functional>

#include "common/checkpoint/checkpoint_layout.h"
#include "gtest/gtest.h"
#include "tests/simulation/contribution_check.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"

namespace nereus {
namespace {

// Processes are numbered from the shards on: here two of them, then workers.
constexpr ProcessId kShard0 = 0;
constexpr ProcessId kShard1 = 1;
constexpr ProcessId kWorker0 = 2;
constexpr ProcessId kWorker1 = 3;
constexpr ProcessId kWorker2 = 4;

SimulatedClusterOptions ThreeWorkers() {
  SimulatedClusterOptions options;
  options.seed = 1;
  options.workers = 3;
  options.max_workers = 6;
  options.shards = 2;
  options.job.optimizer = ExactSgd();
  options.lease = absl::Seconds(4);
  // A step takes about a second.
  options.layer_time_max = absl::Milliseconds(250);
  return options;
}

SimulatedClusterOptions ThreeWorkersAndCopies(uint64_t seed) {
  SimulatedClusterOptions options = ThreeWorkers();
  options.seed = seed;
  options.layer_time_max = absl::Milliseconds(20);
  options.job.backup = true;
  return options;
}

TEST(ScriptedSimulationTest, ABadDay) {
  SimulatedClusterOptions options = ThreeWorkers();
  options.has_disk = true;
  options.job.checkpoint_every = 2;
  SimulatedCluster cluster(options, SignedWorkload());
  const ContributionCheck contributions(options, &cluster);

  cluster.At(absl::Seconds(2), [&] { cluster.SlowDown(kWorker1, 10); });
  cluster.At(absl::Seconds(5), [&] { cluster.SlowDown(kWorker1, 1); });
  cluster.At(absl::Seconds(6), [&] {
    cluster.SetLink(kWorker0, kShard1,
                    {.extra_delay = absl::Milliseconds(300)});
  });
  cluster.At(absl::Seconds(7),
             [&] { cluster.BreakInFrame(kShard0, kWorker1, /*frames=*/2); });
  cluster.At(absl::Seconds(8),
             [&] { cluster.SetLink(kWorker0, kShard1, Link()); });
  cluster.At(absl::Seconds(9), [&] { cluster.Partition({kWorker1}); });
  cluster.At(absl::Seconds(10), [&] { cluster.Heal(); });
  cluster.At(absl::Seconds(12), [&] { cluster.CrashCoordinator(); });
  cluster.At(absl::Seconds(13), [&] { cluster.RestartCoordinator(); });
  cluster.At(absl::Seconds(16), [&] { cluster.Crash(kShard1); });
  cluster.At(absl::Seconds(17), [&] { cluster.StartShard(1); });
  cluster.At(absl::Seconds(20), [&] { cluster.Pause(kWorker2); });
  cluster.At(absl::Seconds(26), [&] { cluster.Resume(kWorker2); });

  const absl::Status status = cluster.RunSteps(40);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(contributions.status().ok()) << contributions.status();
  EXPECT_GT(cluster.events().now(), absl::UnixEpoch() + absl::Seconds(26));
  EXPECT_EQ(cluster.job().worker_count(), 3);
  // The one that was paused came back as another one.
  EXPECT_EQ(cluster.job().PositionOf(2), -1);
  EXPECT_EQ(cluster.job().PositionOf(3), 2);
}

TEST(ScriptedSimulationTest, AShortPartitionCostsNobodyHisPlace) {
  SimulatedCluster cluster(ThreeWorkers(), SignedWorkload());
  ASSERT_TRUE(cluster.RunSteps(1).ok());
  const absl::Time before = cluster.events().now();
  cluster.Partition({kWorker1, kWorker2});
  cluster.At(before - absl::UnixEpoch() + absl::Seconds(3),
             [&] { cluster.Heal(); });
  ASSERT_TRUE(cluster.RunSteps(4).ok());
  EXPECT_GT(cluster.events().now(), before + absl::Seconds(3));
  EXPECT_EQ(cluster.job().epoch, 1u);
  EXPECT_EQ(cluster.job().worker_count(), 3);
}

TEST(ScriptedSimulationTest, WhoIsCutOffForLongCountsAsDeadAndComesBack) {
  for (const bool breaks : {false, true}) {
    SCOPED_TRACE(breaks);
    SimulatedCluster cluster(ThreeWorkers(), SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(1).ok());
    cluster.Partition({kWorker1, kWorker2});
    if (breaks) cluster.BreakAcross();
    cluster.AdvanceBy(absl::Seconds(8));
    EXPECT_EQ(cluster.job().worker_count(), 1);
    cluster.Heal();
    cluster.AdvanceBy(absl::Seconds(5));
    EXPECT_EQ(cluster.job().worker_count(), 3);
    const absl::Status status = cluster.RunSteps(12);
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Its session goes on to say that it lives.
TEST(ScriptedSimulationTest, AWorkerWhoseDriverStandsStillCountsAsDead) {
  SimulatedCluster cluster(ThreeWorkers(), SignedWorkload());
  cluster.At(absl::Seconds(2), [&] { cluster.StallDriver(kWorker1); });
  cluster.At(absl::Seconds(40), [&] { cluster.Resume(kWorker1); });
  const absl::Status status = cluster.RunSteps(60);
  EXPECT_TRUE(status.ok()) << status;
  // It came back as another one.
  EXPECT_EQ(cluster.job().worker_count(), 3);
  EXPECT_EQ(cluster.job().PositionOf(1), -1);
}

// Two servers cannot keep the connection between them; the coordinator is in
// the first one's process.
TEST(ScriptedSimulationTest, ALinkThatFlapsDoesNotCostTheCoordinator) {
  SimulatedClusterOptions options = ThreeWorkersAndCopies(/*seed=*/1);
  options.layer_time_max = absl::Milliseconds(250);
  options.coordinator_is_shard_0 = true;
  SimulatedCluster cluster(options, SignedWorkload());
  for (const int at : {2, 4, 6}) {
    cluster.At(absl::Seconds(at), [&] {
      cluster.BreakConnection(cluster.shard_process(0),
                              cluster.shard_process(1));
    });
  }
  const absl::Status status = cluster.RunSteps(30);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(cluster.shard_process(0), kShard0);
  EXPECT_NE(cluster.shard_process(1), kShard1);
}

TEST(ScriptedSimulationTest, AFrameThatIsCutShortCountsForNothing) {
  for (int frames = 0; frames < 12; ++frames) {
    SCOPED_TRACE(frames);
    const SimulatedClusterOptions options = ThreeWorkers();
    SimulatedCluster cluster(options, SignedWorkload());
    const ContributionCheck contributions(options, &cluster);
    ASSERT_TRUE(cluster.RunSteps(1).ok());
    cluster.BreakInFrame(kWorker1, kShard0, frames);
    cluster.BreakInFrame(kShard1, kWorker2, frames);
    const absl::Status status = cluster.RunSteps(8);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(contributions.status().ok()) << contributions.status();
    EXPECT_GT(cluster.job().epoch, 1u);
    EXPECT_EQ(cluster.job().worker_count(), 3);
  }
}

TEST(ScriptedSimulationTest, AResultThatIsLostComesAgain) {
  const SimulatedClusterOptions options = ThreeWorkers();
  SimulatedCluster cluster(options, SignedWorkload());
  const ContributionCheck contributions(options, &cluster);
  ASSERT_TRUE(cluster.RunSteps(1).ok());
  cluster.BreakAfterSend(kShard0, kWorker1);
  const absl::Status status = cluster.RunSteps(4);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(contributions.status().ok()) << contributions.status();
  EXPECT_GT(cluster.job().epoch, 1u);
}

// Each message of a member in turn: to join, to leave, to report.
TEST(ScriptedSimulationTest, AnAnswerThatIsLostIsGivenAgain) {
  const SimulatedClusterOptions options = ThreeWorkers();
  {
    SimulatedCluster cluster(options, SignedWorkload());
    for (ProcessId process = 0; process <= kWorker2; ++process) {
      cluster.LoseNextAnswer(process);
    }
    ASSERT_TRUE(cluster.RunSteps(3).ok());
    EXPECT_EQ(cluster.job().worker_count(), 3);
  }
  {
    SimulatedCluster cluster(options, SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.LoseNextAnswer(kWorker1);
    cluster.LeaveSoon(kWorker1);
    const absl::Status status = cluster.RunSteps(6);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cluster.job().worker_count(), 2);
  }
  {
    SimulatedCluster cluster(options, SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.LoseNextAnswer(kWorker0);
    cluster.LoseNextAnswer(kShard0);
    cluster.Crash(kWorker1);
    const absl::Status status = cluster.RunSteps(6);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cluster.job().worker_count(), 2);
  }
}

TEST(ScriptedSimulationTest, ASessionMayEndForOneOfTheTwoFirst) {
  for (const bool member_first : {false, true}) {
    SCOPED_TRACE(member_first);
    SimulatedCluster cluster(ThreeWorkers(), SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(1).ok());
    const absl::Duration late = absl::Milliseconds(800);
    cluster.BreakSession(kWorker1, member_first ? absl::ZeroDuration() : late,
                         member_first ? late : absl::ZeroDuration());
    ASSERT_TRUE(cluster.RunSteps(8).ok());
    // Shorter than the coordinator waits for one that has lost its session.
    EXPECT_EQ(cluster.job().epoch, 1u);
    EXPECT_EQ(cluster.job().worker_count(), 3);
  }
}

// The shard's word that its part is on disk was said into a session that was
// broken already, and not again in the next one: the checkpoint that was asked
// for never came, and nobody heard why.
TEST(ScriptedSimulationTest, ACheckpointSurvivesTheLossOfAShardsWord) {
  SimulatedClusterOptions options = ThreeWorkers();
  options.layer_time_max = absl::Milliseconds(5);
  options.has_disk = true;
  SimulatedCluster cluster(options, SignedWorkload());
  ASSERT_TRUE(cluster.RunSteps(2).ok());
  cluster.AdvanceBy(absl::Seconds(1));
  ASSERT_EQ(cluster.checkpoints_made(), 1);
  ASSERT_TRUE(cluster.RequestCheckpoint().ok());
  cluster.AdvanceBy(absl::Milliseconds(200));
  ASSERT_EQ(cluster.job().epoch, 2u);  // In which it is made.
  const absl::Duration late = absl::Milliseconds(900);
  cluster.BreakSession(kShard0, late, late);
  ASSERT_TRUE(cluster.RunSteps(6).ok());
  cluster.AdvanceBy(absl::Seconds(5));
  EXPECT_EQ(cluster.job().epoch, 2u);
  EXPECT_EQ(cluster.checkpoints_made(), 2);
  EXPECT_FALSE(cluster.coordinator()->checkpoints().wanted());
}

// A checkpoint that was whole counted as failed when an older one could not be
// removed, or only in part; the job then went back to that one. Seed 7924 of
// the swarm.
TEST(ScriptedSimulationTest, WhatCannotBeRemovedDoesNotSpoilWhatIsWhole) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedClusterOptions options = ThreeWorkers();
    options.seed = seed;
    options.layer_time_max = absl::Milliseconds(5);
    options.has_disk = true;
    options.disk.failure_probability = 0.3;
    options.job.checkpoint_every = 1;
    options.checkpoints_kept = 1;
    SimulatedCluster cluster(options, SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(20).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    cluster.Crash(kShard1);
    cluster.StartShard(1);
    const absl::Status status = cluster.RunSteps(25);
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Whoever had missed an epoch's beginning was told who is there by now, not who
// was there: where a server had gone, or a worker come, it refused that, and
// was told again, for ever. Seed 1047 of the swarm.
TEST(ScriptedSimulationTest, WhoMissesAnEpochsBeginningHearsWhoWasThere) {
  for (const bool dies : {false, true}) {
    SCOPED_TRACE(dies);
    SimulatedClusterOptions options = ThreeWorkers();
    options.job.backup = true;
    SimulatedCluster cluster(options, SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(1).ok());
    cluster.AtNextEpoch([&] {
      // Long enough for a server to count as dead.
      const absl::Duration late = absl::Milliseconds(1800);
      cluster.BreakSession(kWorker0, late, late);
      const absl::Duration now = cluster.events().now() - absl::UnixEpoch();
      cluster.At(now + absl::Milliseconds(300), [&] {
        if (dies) {
          cluster.Crash(kShard1);
        } else {
          cluster.StartWorker();
        }
      });
    });
    cluster.StartWorker();
    const absl::Status status = cluster.RunSteps(8);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cluster.job().worker_count(), dies ? 4 : 5);
  }
}

// The coordinator dies in the middle of a manifest, which stays torn; then all
// go back to the newest checkpoint that is whole.
TEST(ScriptedSimulationTest, ATornManifestIsNoCheckpoint) {
  int torn = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedClusterOptions options = ThreeWorkers();
    options.seed = seed;
    options.layer_time_max = absl::Milliseconds(5);
    options.has_disk = true;
    options.disk.tears = true;
    options.job.checkpoint_every = 4;
    SimulatedCluster cluster(options, SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(5).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    ASSERT_EQ(cluster.checkpoints_made(), 2);  // Of rounds 0 and 3.
    cluster.CrashInManifest(0);
    ASSERT_TRUE(cluster.RunSteps(9).ok());
    cluster.AdvanceBy(absl::Seconds(1));
    ASSERT_EQ(cluster.coordinator(), nullptr);
    const bool is_torn = cluster.disk().torn(ManifestName(7));
    torn += is_torn ? 1 : 0;
    cluster.RestartCoordinator();
    cluster.Crash(kShard1);
    cluster.StartShard(1);
    const absl::Status status = cluster.RunSteps(12);
    ASSERT_TRUE(status.ok()) << status;
    if (is_torn) {
      EXPECT_EQ(cluster.job().base_round, 3);
    }
  }
  EXPECT_GT(torn, 10);
}

// A server that has its place back may be a round ahead of the one that served
// meanwhile and is its copy now, and die before that has the round too.
TEST(ScriptedSimulationTest, AServerMayDieAgainAsSoonAsItIsBack) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedCluster cluster(ThreeWorkersAndCopies(seed), SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(2).ok());
    cluster.Crash(kShard1);
    const ProcessId back = cluster.StartShard(1);
    cluster.SetLink(back, kShard0, {.extra_delay = absl::Milliseconds(100)});
    const std::function<void()> die_again = [&] {
      if (cluster.job().shard_servers[1].primary != 1) {
        return cluster.AtNextEpoch(die_again);
      }
      const absl::Duration now = cluster.events().now() - absl::UnixEpoch();
      cluster.At(now + absl::Milliseconds(150), [&] { cluster.Crash(back); });
    };
    cluster.AtNextEpoch(die_again);
    const absl::Status status = cluster.RunSteps(60);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_FALSE(cluster.alive(back));
    EXPECT_EQ(cluster.job().base_round, kInitialRound);
  }
}

// A server went on after its report: its copy became whole, and served in the
// next epoch, with what it had reported before that. So workers began with a
// round that was closed long ago. Seed 15068 of the swarm.
TEST(ScriptedSimulationTest, WhatAServerReportsStaysTrue) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedClusterOptions options = ThreeWorkersAndCopies(seed);
    options.min_workers = 1;
    options.rules.forced = Scheme::kServer;
    SimulatedCluster cluster(options, SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(3).ok());
    cluster.Crash(kShard1);
    const ProcessId back = cluster.StartShard(1);
    cluster.SetLink(back, kShard0, {.extra_delay = absl::Milliseconds(100)});
    cluster.AtNextEpoch([&] {
      const absl::Duration now = cluster.events().now() - absl::UnixEpoch();
      cluster.At(now + absl::Milliseconds(10 * seed), [&, now] {
        for (const ProcessId worker : {kWorker0, kWorker1, kWorker2}) {
          cluster.Pause(worker);  // For long enough to count as dead.
          cluster.At(now + absl::Seconds(8),
                     [&, worker] { cluster.Resume(worker); });
        }
        cluster.StartWorker();
      });
    });
    const absl::Status status = cluster.RunSteps(20);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(ScriptedSimulationTest, ASlowNodeSlowsTheJobAndHarmsNobody) {
  SimulatedClusterOptions options = ThreeWorkers();
  options.layer_time_max = absl::Milliseconds(5);
  options.node_rate = {50e6, 50e6};
  const auto time_of_steps = [&](ProcessId slow) {
    SimulatedCluster cluster(options, SignedWorkload());
    EXPECT_TRUE(cluster.RunSteps(1).ok());
    const absl::Time before = cluster.events().now();
    if (slow >= 0) cluster.SlowDown(slow, 10);
    EXPECT_TRUE(cluster.RunSteps(5).ok());
    EXPECT_EQ(cluster.job().epoch, 1u);
    return cluster.events().now() - before;
  };
  const absl::Duration usual = time_of_steps(-1);
  EXPECT_GT(time_of_steps(kWorker1), 4 * usual);
  EXPECT_GT(time_of_steps(kShard0), 4 * usual);
}

TEST(ScriptedSimulationTest, AStrangerIsToldWhyItIsNotLetIn) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SimulatedClusterOptions options = ThreeWorkers();
    options.seed = seed;
    SimulatedCluster cluster(options, SignedWorkload());
    ASSERT_TRUE(cluster.RunSteps(1).ok());
    const ProcessId stranger = cluster.StartStranger();
    ASSERT_TRUE(cluster.RunSteps(4).ok());
    EXPECT_FALSE(cluster.alive(stranger));
    EXPECT_EQ(cluster.job().epoch, 1u);
  }
}

}  // namespace
}  // namespace nereus
