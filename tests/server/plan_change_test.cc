// Epochs that change the plan, and those before them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/coordinator/epoch_change.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

constexpr Route kByServers = {Scheme::kServer, WireType::kFloat32};
constexpr Route kByFactors = {Scheme::kFactor, WireType::kFloat32};
constexpr Route kByRing = {Scheme::kRing, WireType::kFloat32};

// Epoch 5, two servers, layer 0 by factors, layer 1 through the servers; it
// ends with round 7.
JobPtr EndingJob(JobOptions options = {}) {
  const JobPtr first =
      TestJob(3, 2, {FactorLayer("fc", 4, 3, true, 2), VectorLayer("scale", 7)},
              options, Scheme::kFactor);
  return EpochAfter(*first, [](Job& job) {
    job.history.first_step = 7;
    job.history.contributions_before = 21;
    job.switch_round = 7;
  });
}

// All are done with round 7, and there is a plan.
EpochChange SettledChange() {
  EpochChange change;
  for (const int32_t rank : {0, 1, 2}) {
    EpochChange::Worker worker;
    worker.rank = rank;
    worker.report.begun_step = 7;
    worker.report.peer_layers = {{0, 7, 3}};
    worker.report.ready_to_switch = true;
    change.workers.push_back(worker);
  }
  for (const int32_t rank : {0, 1}) {
    EpochChange::Server server;
    server.rank = rank;
    server.report.closed_rounds[rank] = 7;
    server.report.ready_to_switch = true;
    change.servers.push_back(server);
  }
  change.plan = {{kByServers, kByRing}, {}};
  return change;
}

JobPtr Next(const Job& job, const EpochChange& change) {
  const auto next = MakeNextEpoch(job, job.epoch + 1, change);
  EXPECT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->workers_from_base.empty());
  return next->job;
}

TEST(PlanChangeTest, OnceReadyToSwitchTheShardsHaveTheBaseOfTheNextPlan) {
  const JobPtr next = Next(*EndingJob(), SettledChange());
  EXPECT_EQ(next->routes, (std::vector<Route>{kByServers, kByRing}));
  EXPECT_EQ(next->history.base_round, 7);
  EXPECT_EQ(next->history.first_step, 8);
  EXPECT_EQ(next->history.contributions_before, 24);
  EXPECT_FALSE(next->switches());
  for (const EpochWorker& each : next->workers) EXPECT_EQ(each.first_step, 8);
}

TEST(PlanChangeTest, NothingMovesIfWorkersUpdate) {
  JobOptions options;
  options.optimizer_place = OptimizerPlace::kWorker;
  const JobPtr next = Next(*EndingJob(options), SettledChange());
  EXPECT_EQ(next->routes, (std::vector<Route>{kByServers, kByRing}));
  EXPECT_EQ(next->history.base_round, kInitialRound);
  for (const EpochWorker& each : next->workers) EXPECT_EQ(each.first_step, 0);
}

TEST(PlanChangeTest, JoinerBeginsWithTheNewPlan) {
  EpochChange change = SettledChange();
  change.joiners = {3};
  const JobPtr next = Next(*EndingJob(), change);
  EXPECT_EQ(next->history.base_round, 7);
  EXPECT_EQ(next->workers.back(), (EpochWorker{3, 8}));
}

// That the plan is to change is said first; the steps after the next one wait.
void ExpectAnnounced(const Job& job, const EpochChange& change,
                     int64_t round = 8) {
  const JobPtr next = Next(job, change);
  EXPECT_EQ(next->routes, (std::vector<Route>{kByFactors, kByServers}));
  EXPECT_EQ(next->history.base_round, kInitialRound);
  EXPECT_EQ(next->switch_round, round);
}

TEST(PlanChangeTest, BetterPlanEndsTheStepsOfThisOne) {
  const JobPtr job =
      EpochAfter(*EndingJob(), [](Job& j) { j.switch_round = kInitialRound; });
  ExpectAnnounced(*job, SettledChange());
}

TEST(PlanChangeTest, WithoutABetterPlanStepsGoOn) {
  EpochChange change = SettledChange();
  change.plan.reset();
  EXPECT_FALSE(Next(*EndingJob(), change)->switches());
}

TEST(PlanChangeTest, PlanStaysUntilAllMembersAreReadyToSwitch) {
  EpochChange worker = SettledChange();
  worker.workers[1].report.ready_to_switch = false;
  ExpectAnnounced(*EndingJob(), worker);

  EpochChange server = SettledChange();
  server.servers[1].report.ready_to_switch = false;
  ExpectAnnounced(*EndingJob(), server);

  EpochChange leaver = SettledChange();
  leaver.workers[2].leaves = true;
  ExpectAnnounced(*EndingJob(), leaver);

  EpochChange behind = SettledChange();
  behind.workers[2].report.begun_step = 6;
  ExpectAnnounced(*EndingJob(), behind);
}

JobPtr JobWithCopies() {
  JobOptions options;
  options.backup = true;
  return EpochAfter(*EndingJob(options), [](Job& job) {
    for (ShardServers& servers : job.shard_servers)
      servers.backup_is_current = true;
  });
}

TEST(PlanChangeTest, BackupThatTakesOverLacksHandedOverValues) {
  EpochChange change = SettledChange();
  change.servers.pop_back();
  change.servers[0].report.closed_rounds[1] = 7;
  ExpectAnnounced(*JobWithCopies(), change);
}

TEST(PlanChangeTest, BackupsAreSentHandedOverValues) {
  const JobPtr job = JobWithCopies();
  const JobPtr next = Next(*job, SettledChange());
  // Backups of shards without handed-over values stay as they were.
  const int shard = job->placement.layer_chunks(0)[0].shard;
  EXPECT_FALSE(next->shard_servers[shard].backup_is_current);
  EXPECT_TRUE(next->shard_servers[1 - shard].backup_is_current);
}

TEST(PlanChangeTest, ResidualOfASparseLayerStaysWithItsRoute) {
  JobOptions options;
  options.sparsity.share = 0.5;
  options.sparsity.dense_steps = 10;
  const JobPtr dense = TestJob(3, 2, {VectorLayer("scale", 70000)}, options);
  EpochChange change = SettledChange();
  change.plan = {{kByRing}, {}};
  for (auto& worker : change.workers) worker.report.peer_layers.clear();
  EXPECT_EQ(Next(*dense, change)->switch_round, 8);
  for (auto& worker : change.workers) worker.report.begun_step = 8;
  // In round 10, blocks are held back.
  EXPECT_FALSE(Next(*dense, change)->switches());
}

// ---- Plans for rows that the job learns.

// Epoch 1: the layer fc goes dense in the first step, and has a switch round.
JobPtr LearningJob(JobOptions options = {}) {
  LayerSpec fc = FactorLayer("fc", 4, 3, true, 2);
  fc.rows = kRowsNotKnown;
  const JobPtr first = TestJob(3, 2, {fc, VectorLayer("scale", 7)}, options);
  Job job = *first;
  job.switch_round = 0;
  const auto made = MakeJob(job, 2);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

EpochChange LearntChange(int64_t step = 0) {
  EpochChange change = SettledChange();
  for (auto& worker : change.workers) {
    worker.report.begun_step = step;
    worker.report.peer_layers.clear();
  }
  for (auto& server : change.servers) {
    server.report.closed_rounds[server.rank] = step;
  }
  const JobPtr job = LearningJob();
  change.plan = {{kByFactors, kByServers}, job->layers};
  change.plan->layers[0].rows = 2;
  change.learns_rows = true;
  return change;
}

TEST(PlanChangeTest, LearntRowsBeginWithTheirPlanAndMoveNoChunk) {
  const JobPtr job = LearningJob();
  const JobPtr next = Next(*job, LearntChange());
  EXPECT_EQ(next->routes, (std::vector<Route>{kByFactors, kByServers}));
  EXPECT_EQ(next->layers[0].rows, 2);
  EXPECT_EQ(next->history.first_step, 1);
  EXPECT_FALSE(next->switches());
  for (size_t i = 0; i < job->placement.chunks().size(); ++i) {
    EXPECT_EQ(next->placement.chunks()[i], job->placement.chunks()[i]);
  }
}

TEST(PlanChangeTest, ModelStaysAsItIsUntilAllAreReadyToSwitch) {
  EpochChange change = LearntChange();
  change.workers[1].report.ready_to_switch = false;
  const JobPtr next = Next(*LearningJob(), change);
  EXPECT_EQ(next->layers[0].rows, kRowsNotKnown);
  EXPECT_EQ(next->switch_round, 1);
}

TEST(PlanChangeTest, InterruptedFirstSwitchIsTriedAgain) {
  EpochChange change = LearntChange();
  change.plan.reset();
  change.joiners = {3};
  change.workers[1].report.ready_to_switch = false;
  EXPECT_EQ(Next(*LearningJob(), change)->switch_round, 1);
  // The job had its first switch before: no other one follows.
  const JobPtr later = EpochAfter(
      *LearningJob(), [](Job& j) { j.switch_round = kInitialRound; });
  EXPECT_FALSE(Next(*later, change)->switches());
}

TEST(PlanChangeTest, JobDoesNotWaitForRowsThatNoWorkerSays) {
  EpochChange change = LearntChange();
  change.plan.reset();
  const JobPtr next = Next(*LearningJob(), change);
  EXPECT_FALSE(next->switches());
  EXPECT_EQ(next->layers[0].rows, kRowsNotKnown);
}

TEST(PlanChangeTest, JobThatGoesBackHasAFirstSwitchAgain) {
  EpochChange change = LearntChange();
  const CheckpointRecord point = {0, 3, {}};
  const auto back = MakeRestartedEpoch(*LearningJob(), 2, point, change);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->job->switch_round, 1);
  EXPECT_EQ(back->job->layers[0].rows, kRowsNotKnown);
  change.learns_rows = false;
  const auto known = MakeRestartedEpoch(*LearningJob(), 2, point, change);
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_FALSE(known->job->switches());
}

}  // namespace
}  // namespace nereus
