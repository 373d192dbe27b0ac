#include "server/coordinator/epoch_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Layers 0 and 2 go by factors, layer 1 through the two shards.
JobPtr MixedJob(int workers, OptimizerPlace place = OptimizerPlace::kServer) {
  JobOptions options;
  options.optimizer_place = place;
  return TestJob(workers, 2,
                 {FactorLayer("fc1", 4, 3, true, 2), VectorLayer("scale", 7),
                  FactorLayer("fc2", 4, 3, true, 2)},
                 options, Scheme::kFactor);
}

// A job without factors: the shards have all layers.
JobPtr ServerJob(int workers, OptimizerPlace place = OptimizerPlace::kServer) {
  JobOptions options;
  options.optimizer_place = place;
  return TestJob(workers, 2, {VectorLayer("scale", 7)}, options);
}

// Returns the next epoch of a job, with these workers and this first step.
JobPtr Later(const JobPtr& job, const std::vector<EpochWorker>& workers,
             int64_t first_step, int64_t contributions_before = 0) {
  return EpochAfter(*job, [&](Job& late) {
    late.workers = workers;
    late.history.first_step = first_step;
    late.history.contributions_before = contributions_before;
  });
}

// A worker in step `step`, that has done all rounds before it, with
// `contributors`.
EpochChange::Worker At(int rank, int64_t step, int contributors = 3) {
  EpochChange::Worker worker;
  worker.rank = rank;
  worker.report.begun_step = step;
  for (const int32_t layer : {0, 2}) {
    worker.report.peer_layers.push_back({layer, step - 1, contributors});
  }
  return worker;
}

// A worker in step 8; rounds of layers 0 and 2 that are done.
EpochChange::Worker Done(int rank, int64_t first, int64_t second,
                         int contributors = 4) {
  EpochChange::Worker worker;
  worker.rank = rank;
  worker.report.begun_step = 8;
  worker.report.peer_layers = {{0, first, contributors},
                               {2, second, contributors}};
  return worker;
}

EpochChange::Worker Leaving(EpochChange::Worker worker) {
  worker.leaves = true;
  return worker;
}

EpochChange::Worker Fetching(int rank, int64_t first_step) {
  EpochChange::Worker worker;
  worker.rank = rank;
  worker.report.begun_step = first_step - 1;
  worker.report.fetching = true;
  return worker;
}

// Servers 0, 1, ..., with these closed rounds of their own shards.
std::vector<EpochChange::Server> Closed(
    const std::vector<std::optional<int64_t>>& rounds) {
  std::vector<EpochChange::Server> servers;
  for (const std::optional<int64_t>& round : rounds) {
    EpochChange::Server server;
    server.rank = static_cast<int32_t>(servers.size());
    if (round.has_value()) server.report.closed_rounds[server.rank] = *round;
    servers.push_back(std::move(server));
  }
  return servers;
}

EpochChange ChangeOf(std::vector<EpochChange::Worker> workers,
                     std::vector<int32_t> joiners = {},
                     std::optional<int64_t> closed = kInitialRound) {
  return {std::move(workers),
          Closed({closed, closed}),
          {},
          std::move(joiners),
          false};
}

// The next epoch, number 6, which must be possible.
NextEpoch Next(const Job& job, const EpochChange& change) {
  const auto next = MakeNextEpoch(job, 6, change);
  EXPECT_TRUE(next.ok()) << next.status();
  return next.value_or(NextEpoch());
}

TEST(EpochChangeTest, JobKeepsItsModelAndOptions) {
  const JobPtr job = MixedJob(3);
  const NextEpoch next = Next(*job, ChangeOf({At(0, 4), At(1, 4), At(2, 4)}));
  EXPECT_EQ(next.job->id, job->id);
  EXPECT_EQ(next.job->epoch, 6u);
  EXPECT_EQ(next.job->workers, job->workers);
  EXPECT_EQ(next.job->layers, job->layers);
  EXPECT_EQ(next.job->routes, job->routes);
  EXPECT_EQ(next.job->options, job->options);
  EXPECT_EQ(next.job->shards(), job->shards());
  EXPECT_EQ(next.job->history.base_round, job->history.base_round);
  EXPECT_THAT(next.job->crew.left_workers, IsEmpty());
  EXPECT_THAT(next.workers_from_base, IsEmpty());
}

TEST(EpochChangeTest, DeadWorkersAreNotInTheNextEpoch) {
  const NextEpoch next = Next(*MixedJob(4), ChangeOf({At(1, 4), At(3, 4)}));
  EXPECT_THAT(next.job->workers,
              ElementsAre(EpochWorker{1, 0}, EpochWorker{3, 0}));
}

TEST(EpochChangeTest, JoinersBeginWithTheFirstFreeStep) {
  const NextEpoch next =
      Next(*MixedJob(2), ChangeOf({At(0, 4), At(1, 5)}, /*joiners=*/{2, 5}));
  EXPECT_EQ(next.job->history.first_step, 6);
  EXPECT_THAT(next.job->workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{1, 0},
                          EpochWorker{2, 6}, EpochWorker{5, 6}));
}

TEST(EpochChangeTest, BeforeTheFirstStepJoinersBeginWithAllOthers) {
  const NextEpoch next =
      Next(*MixedJob(2), ChangeOf({At(0, -1), At(1, -1)}, {2}));
  EXPECT_EQ(next.job->history.first_step, 0);
  EXPECT_THAT(
      next.job->workers,
      ElementsAre(EpochWorker{0, 0}, EpochWorker{1, 0}, EpochWorker{2, 0}));
}

// The worker that had begun the step has died, and its contribution may count.
TEST(EpochChangeTest, FirstFreeStepNeverGoesBack) {
  const JobPtr job = Later(MixedJob(2), {{0, 0}, {2, 9}}, 9);
  const NextEpoch next = Next(*job, ChangeOf({At(0, 7)}, {3}));
  EXPECT_EQ(next.job->history.first_step, 9);
  EXPECT_THAT(next.job->workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{3, 9}));
}

TEST(EpochChangeTest, WorkerThatJoinedLaterKeepsItsFirstStep) {
  const JobPtr job = Later(MixedJob(2), {{0, 0}, {2, 9}}, 9);
  const NextEpoch next = Next(*job, ChangeOf({At(0, 12), At(2, 12)}));
  EXPECT_EQ(next.job->workers, job->workers);
}

TEST(EpochChangeTest, LeaversAreNoWorkersAndAreRemembered) {
  JobPtr job = MixedJob(3);
  NextEpoch next =
      Next(*job, ChangeOf({At(0, 4), Leaving(At(1, 3)), At(2, 4)}));
  EXPECT_THAT(next.job->workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{2, 0}));
  EXPECT_THAT(next.job->crew.left_workers, ElementsAre(1));
  // They stay such for as long as they are there.
  job = next.job;
  next = Next(*job, ChangeOf({At(0, 5), Leaving(At(1, 3)), Leaving(At(2, 4))}));
  EXPECT_THAT(next.job->workers, ElementsAre(EpochWorker{0, 0}));
  EXPECT_THAT(next.job->crew.left_workers, ElementsAre(1, 2));
  job = next.job;
  next = Next(*job, ChangeOf({At(0, 5), Leaving(At(2, 4))}));
  EXPECT_THAT(next.job->crew.left_workers, ElementsAre(2));
}

TEST(EpochChangeTest, ContributionsCountAllEarlierSteps) {
  JobPtr job = MixedJob(3);
  // Steps 0 to 4, of three workers.
  NextEpoch next = Next(*job, ChangeOf({At(0, 4), At(1, 4)}));
  EXPECT_EQ(next.job->history.first_step, 5);
  EXPECT_EQ(next.job->history.contributions_before, 15);
  // Nothing was begun since.
  job = next.job;
  next = Next(*job, ChangeOf({At(0, 4), At(1, 4)}, {3}));
  EXPECT_EQ(next.job->history.first_step, 5);
  EXPECT_EQ(next.job->history.contributions_before, 15);
  // Steps 5 to 7, of three again.
  job = next.job;
  next = Next(*job, ChangeOf({At(0, 7), At(1, 6), At(3, 7)}));
  EXPECT_EQ(next.job->history.first_step, 8);
  EXPECT_EQ(next.job->history.contributions_before, 24);
}

TEST(EpochChangeTest, FirstWorkerWithAllValuesIsTheDonor) {
  const JobPtr job = MixedJob(3);
  EXPECT_EQ(Next(*job, ChangeOf({At(0, 4), At(1, 4)}, {3})).job->history.donor,
            0);
  EXPECT_EQ(Next(*job, ChangeOf({At(1, 4), At(2, 4)}, {3})).job->history.donor,
            1);
  // A worker that still fetches has no values to give.
  EXPECT_EQ(
      Next(*job, ChangeOf({Fetching(0, 0), At(2, 4)}, {3})).job->history.donor,
      2);
  // A leaver is no donor if another worker is there.
  EXPECT_EQ(Next(*job, ChangeOf({Leaving(Done(0, 8, 8)), At(1, 4)}, {3}))
                .job->history.donor,
            1);
}

// The last worker leaves, all layers done as of step 8, as others come.
TEST(EpochChangeTest, LeaverIsTheDonorIfNoOtherWorkerHasItsValues) {
  const JobPtr job = Later(MixedJob(1), {{0, 0}, {1, 9}}, 9, 9);
  const NextEpoch next =
      Next(*job, ChangeOf({Leaving(Done(0, 8, 8)), Fetching(1, 9)}, {2},
                          /*closed=*/8));
  EXPECT_EQ(next.job->history.donor, 0);
  EXPECT_EQ(next.job->history.first_step, 9);
  EXPECT_EQ(next.job->history.contributions_before, 9);
  EXPECT_THAT(next.job->crew.left_workers, ElementsAre(0));
  EXPECT_THAT(next.job->workers,
              ElementsAre(EpochWorker{1, 9}, EpochWorker{2, 9}));
  EXPECT_THAT(next.workers_from_base, ElementsAre(1));
}

// Others went on without it, and have died.
TEST(EpochChangeTest, EarlierLeaverIsNoDonor) {
  const JobPtr job = EpochAfter(*MixedJob(2), [](Job& late) {
    late.workers = {{1, 0}};
    late.crew.left_workers = {0};
    late.history.first_step = 10;
  });
  const EpochChange::Worker leaver = Leaving(Done(0, 8, 8));
  // They had not finished another round: its values are the latest.
  const NextEpoch next = Next(*job, ChangeOf({leaver}, {2}, /*closed=*/8));
  EXPECT_EQ(next.job->history.donor, 0);
  EXPECT_EQ(next.job->history.first_step, 9);
  // All had; or no member knows.
  for (const std::optional<int64_t> closed :
       {std::optional<int64_t>(9), std::optional<int64_t>(12),
        std::optional<int64_t>()}) {
    EXPECT_EQ(
        MakeNextEpoch(*job, 6, ChangeOf({leaver}, {2}, closed)).status().code(),
        absl::StatusCode::kAborted);
  }
}

TEST(EpochChangeTest, LeaverWithAnOpenRoundIsNoDonor) {
  EXPECT_EQ(
      MakeNextEpoch(*MixedJob(1), 6, ChangeOf({Leaving(Done(0, 8, 7))}, {1}, 8))
          .status()
          .code(),
      absl::StatusCode::kAborted);
  EXPECT_EQ(
      MakeNextEpoch(*MixedJob(1), 6, ChangeOf({Leaving(Done(0, 8, 8))}, {1}, 7))
          .status()
          .code(),
      absl::StatusCode::kAborted);
}

struct Rounds {
  const char* name;
  std::vector<EpochChange::Worker> workers;
  std::vector<FinishedRound> expected;
};

class FinishedRoundsTest : public testing::TestWithParam<Rounds> {};

TEST_P(FinishedRoundsTest, FinishedRoundsAreThoseThatSomeWorkersLack) {
  const NextEpoch next = Next(*MixedJob(4), ChangeOf(GetParam().workers));
  EXPECT_EQ(next.job->history.finished_rounds, GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, FinishedRoundsTest,
    testing::Values(
        Rounds{"AllHaveTheSame", {Done(0, 7, 7), Done(1, 7, 7)}, {}},
        Rounds{"OneIsAheadInALayer",
               {Done(0, 7, 7), Done(1, 7, 8), Done(2, 7, 7)},
               {{2, 8, 1, 4}}},
        Rounds{"OneIsBehind",
               {Done(0, 7, 7), Done(1, 8, 8), Done(2, 8, 8)},
               {{0, 8, 1, 4}, {2, 8, 1, 4}}},
        Rounds{"EachIsAheadInAnother",
               {Done(0, 8, 7), Done(1, 7, 8)},
               {{0, 8, 0, 4}, {2, 8, 1, 4}}},
        Rounds{"TheHoldersNumberCounts",
               {Done(0, 7, 7), Done(1, 8, 7, 3)},
               {{0, 8, 1, 3}}},
        Rounds{"ALeaverHolds",
               {Done(0, 7, 7), Leaving(Done(1, 8, 7))},
               {{0, 8, 1, 4}}},
        // Has the values from another worker, and no factors.
        Rounds{"AJoinerHoldsNothing",
               {Done(1, 7, 7), Done(2, 8, 7, 0), Done(3, 8, 7)},
               {{0, 8, 3, 4}}},
        Rounds{"OneThatFetchesIsNotBehind",
               {Done(0, 7, 7), Done(1, 7, 7), Fetching(3, 8)},
               {}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(EpochChangeTest, FinishedRoundsOfTheOldEpochAreForgotten) {
  const JobPtr job = EpochAfter(*MixedJob(2), [](Job& late) {
    late.history.finished_rounds = {{0, 3, 1, 2}};
  });
  EXPECT_THAT(
      Next(*job, ChangeOf({At(0, 5), At(1, 5)})).job->history.finished_rounds,
      IsEmpty());
}

// No worker has the values of a step.
TEST(EpochChangeTest, BeforeTheFirstValuesAllStartFromTheBaseRound) {
  for (const JobPtr& job : {MixedJob(3), ServerJob(3)}) {
    const NextEpoch next =
        Next(*job, ChangeOf({Fetching(1, 0), Fetching(2, 0)}, {3}));
    EXPECT_THAT(next.workers_from_base, ElementsAre(1, 2));
    EXPECT_EQ(next.job->history.donor, -1);
    EXPECT_EQ(next.job->history.first_step, 0);
    EXPECT_EQ(next.job->history.contributions_before, 0);
    EXPECT_THAT(
        next.job->workers,
        ElementsAre(EpochWorker{1, 0}, EpochWorker{2, 0}, EpochWorker{3, 0}));
  }
}

TEST(EpochChangeTest, NewWorkersGoOnIfTheShardsHaveAllLayers) {
  const JobPtr job = Later(ServerJob(2), {{0, 0}, {1, 0}, {2, 6}}, 6, 12);
  EpochChange change = ChangeOf({Fetching(2, 6)}, {3});
  // The chunk of a shard is a round behind.
  change.servers = Closed({8, 9});
  const NextEpoch next = Next(*job, change);
  EXPECT_THAT(next.workers_from_base, ElementsAre(2));
  EXPECT_EQ(next.job->history.first_step, 9);
  EXPECT_THAT(next.job->workers,
              ElementsAre(EpochWorker{2, 9}, EpochWorker{3, 9}));
  EXPECT_EQ(next.job->history.contributions_before, 12 + 3 * 3);
}

// Worker 3 joined at step 11, before rounds 9 and 10 were closed.
TEST(EpochChangeTest, OpenRoundsOfFewerWorkersAreNoContributionsAnyMore) {
  const JobPtr job =
      Later(ServerJob(3), {{0, 0}, {1, 0}, {2, 0}, {3, 11}}, 11, 33);
  EpochChange change = ChangeOf({}, {4});
  change.servers = Closed({8, 8});
  const NextEpoch next = Next(*job, change);
  EXPECT_EQ(next.job->history.first_step, 9);
  EXPECT_EQ(next.job->history.contributions_before, 27);
}

TEST(EpochChangeTest, ShardWithoutRoundsDoesNotCountForTheClosedRound) {
  EpochChange change = ChangeOf({}, {3});
  change.servers = Closed({std::nullopt, 4});
  EXPECT_EQ(Next(*ServerJob(2), change).job->history.first_step, 5);
  change.servers = Closed({std::nullopt, std::nullopt});
  EXPECT_EQ(Next(*ServerJob(2), change).job->history.first_step, 0);
}

TEST(EpochChangeTest, ValuesThatOnlyDeadWorkersHadAreLost) {
  const struct {
    JobPtr job;
    const char* layer;
  } kCases[] = {{MixedJob(2), "layer fc1"},
                {ServerJob(2, OptimizerPlace::kWorker), "layer scale"}};
  for (const auto& c : kCases) {
    const absl::Status status =
        MakeNextEpoch(*c.job, 6, ChangeOf({}, {3}, /*closed=*/4)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("all workers were lost"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.layer));
  }
}

// No shard has rounds: only the workers knew how far they were.
TEST(EpochChangeTest, WithAllLayersByFactorsDeadWorkersMayHaveBeenAhead) {
  const JobPtr job =
      TestJob(2, 1, {FactorLayer("fc", 4, 3, true, 2)}, {}, Scheme::kFactor);
  EpochChange change = ChangeOf({}, {2}, std::nullopt);
  EXPECT_EQ(MakeNextEpoch(*job, 6, change).status().code(),
            absl::StatusCode::kAborted);
  // They cannot have been ahead of a live worker that has not begun.
  change.workers = {Fetching(1, 0)};
  const NextEpoch next = Next(*job, change);
  EXPECT_EQ(next.job->history.first_step, 0);
  EXPECT_THAT(next.workers_from_base, ElementsAre(1));
  // They can have been ahead of a worker that joined later.
  const JobPtr late = Later(job, {{0, 0}, {1, 6}}, 6);
  change.workers = {Fetching(1, 6)};
  EXPECT_EQ(MakeNextEpoch(*late, 6, change).status().code(),
            absl::StatusCode::kAborted);
}

TEST(EpochChangeTest, AtTheBaseRoundTheShardsHaveAllLayers) {
  const JobPtr job = EpochAfter(*MixedJob(2), [](Job& restored) {
    restored.workers = {{4, 7}, {5, 7}};
    restored.history.base_round = 6;
    restored.history.first_step = 7;
    restored.history.contributions_before = 14;
  });
  const NextEpoch next =
      Next(*job, ChangeOf({Fetching(5, 7)}, {6}, /*closed=*/6));
  EXPECT_THAT(next.workers_from_base, ElementsAre(5));
  EXPECT_EQ(next.job->history.first_step, 7);
  EXPECT_EQ(next.job->history.contributions_before, 14);
  EXPECT_EQ(next.job->history.base_round, 6);
  // Never before it, whatever a shard that has just come says.
  EXPECT_EQ(Next(*job, ChangeOf({}, {6}, /*closed=*/2)).job->history.first_step,
            7);
}

// The worker has round 8 of a layer from a worker that has died. Worker 1 lacks
// the factors of the dead worker, and no other worker has them.
TEST(EpochChangeTest, WorkerWithValuesOfARoundThatIsDoneAgainDiscardsThem) {
  const JobPtr job = Later(MixedJob(3), {{0, 0}, {1, 0}, {2, 9}, {3, 9}}, 9);
  EpochChange change =
      ChangeOf({Done(1, 7, 7), Done(2, 8, 8, 0), Fetching(3, 9)}, {4});
  NextEpoch next = Next(*job, change);
  EXPECT_THAT(next.workers_from_base, ElementsAre(2));
  EXPECT_THAT(next.job->history.finished_rounds, IsEmpty());
  EXPECT_EQ(next.job->history.donor, 1);
  // The worker takes part from the same step on.
  EXPECT_THAT(next.job->workers,
              ElementsAre(EpochWorker{1, 0}, EpochWorker{2, 9},
                          EpochWorker{3, 9}, EpochWorker{4, 9}));

  // In one layer of two, and not all is there yet.
  change.workers[1].report.peer_layers = {{2, 8, 0}};
  change.workers[1].report.fetching = true;
  next = Next(*job, change);
  EXPECT_THAT(next.workers_from_base, ElementsAre(2));

  // Another one has the factors, of that layer too.
  change.workers.insert(change.workers.begin(), Done(0, 8, 8));
  next = Next(*job, change);
  EXPECT_THAT(next.workers_from_base, IsEmpty());
  EXPECT_THAT(
      next.job->history.finished_rounds,
      ElementsAre(FinishedRound{0, 8, 0, 4}, FinishedRound{2, 8, 0, 4}));
}

TEST(EpochChangeTest, ValuesOfADeadWorkerStayIfTheRoundIsNotDoneAgain) {
  const JobPtr job = Later(MixedJob(3), {{0, 0}, {2, 9}, {3, 9}}, 9);
  const NextEpoch next =
      Next(*job, ChangeOf({Done(2, 8, 8, 0), Fetching(3, 9)}));
  EXPECT_THAT(next.workers_from_base, IsEmpty());
  EXPECT_EQ(next.job->history.donor, 2);
}

TEST(EpochChangeTest, LeaverIsNotTakenBackToTheBaseRound) {
  EXPECT_THAT(
      Next(*ServerJob(2), ChangeOf({Leaving(Fetching(0, 0)), Fetching(1, 0)}))
          .workers_from_base,
      ElementsAre(1));
}

TEST(EpochChangeTest, ThereIsNoEpochWithoutWorkers) {
  EXPECT_EQ(MakeNextEpoch(*ServerJob(2), 6, ChangeOf({})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Reports come over the network.
TEST(EpochChangeTest, ReportsThatMakeNoSenseAreRefused) {
  EpochChange change = ChangeOf({Done(0, 7, 7), Done(1, 8, 7, 70000)});
  EXPECT_EQ(MakeNextEpoch(*MixedJob(2), 6, change).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Reports about unknown layers, or about layers that the servers aggregate.
  change = ChangeOf({Done(0, 7, 7), Done(1, 7, 7)});
  change.workers[1].report.peer_layers = {
      {-1, 9, 2}, {1, 9, 2}, {3, 9, 2}, {0, 7, 2}, {2, 7, 2}};
  EXPECT_THAT(Next(*MixedJob(2), change).job->history.finished_rounds,
              IsEmpty());
}

TEST(EpochChangeTest, CheckpointIsOfTheFirstFreeStep) {
  const JobPtr job = MixedJob(2);
  EpochChange change = ChangeOf({At(0, 4), At(1, 6)});
  EXPECT_EQ(Next(*job, change).job->checkpoint_round, kInitialRound);
  change.checkpoint = true;
  const NextEpoch next = Next(*job, change);
  EXPECT_EQ(next.job->checkpoint_round, 7);
  EXPECT_TRUE(next.job->IsCheckpoint(7));
  // The round stays planned until the next request.
  change.checkpoint = false;
  EXPECT_EQ(Next(*next.job, change).job->checkpoint_round, 7);
}

// A job of four that has come far, and goes back to round 5.
class RestartedEpochTest : public testing::Test {
 protected:
  RestartedEpochTest()
      : job_(EpochAfter(*MixedJob(3), [](Job& late) {
          late.workers = {{0, 0}, {2, 9}};
          late.crew.left_workers = {1};
          late.history.first_step = 9;
          late.history.contributions_before = 27;
          late.history.finished_rounds = {{0, 8, 1, 3}};
          late.history.donor = 0;
          late.checkpoint_round = 12;
        })) {}
  NextEpoch Restarted(const EpochChange& change) {
    const auto next = MakeRestartedEpoch(*job_, 7, {5, 18}, change);
    EXPECT_TRUE(next.ok()) << next.status();
    return next.value_or(NextEpoch());
  }
  const JobPtr job_;
};

TEST_F(RestartedEpochTest, AllMembersBeginAfterTheCheckpoint) {
  const NextEpoch next = Restarted(ChangeOf({At(0, 14), At(2, 14)}, {5}));
  EXPECT_EQ(next.job->epoch, 7u);
  EXPECT_EQ(next.job->history.base_round, 5);
  EXPECT_EQ(next.job->history.first_step, 6);
  EXPECT_EQ(next.job->history.contributions_before, 18);
  EXPECT_THAT(
      next.job->workers,
      ElementsAre(EpochWorker{0, 6}, EpochWorker{2, 6}, EpochWorker{5, 6}));
  EXPECT_THAT(next.workers_from_base, ElementsAre(0, 2));
}

TEST_F(RestartedEpochTest, NothingFromBeforeTheRestartIsLeft) {
  const NextEpoch next = Restarted(ChangeOf({At(0, 14)}));
  EXPECT_THAT(next.job->history.finished_rounds, IsEmpty());
  EXPECT_THAT(next.job->crew.left_workers, IsEmpty());
  EXPECT_EQ(next.job->history.donor, -1);
  EXPECT_EQ(next.job->checkpoint_round, kInitialRound);
  EXPECT_EQ(next.job->layers, job_->layers);
  EXPECT_EQ(next.job->options, job_->options);
  EXPECT_EQ(next.job->shards(), job_->shards());
}

// The steps of the leavers are done again.
TEST_F(RestartedEpochTest, LeaversAreWorkersAgain) {
  const NextEpoch next =
      Restarted(ChangeOf({At(0, 14), Leaving(At(1, 8)), Leaving(At(2, 14))}));
  EXPECT_THAT(
      next.job->workers,
      ElementsAre(EpochWorker{0, 6}, EpochWorker{1, 6}, EpochWorker{2, 6}));
  EXPECT_THAT(next.workers_from_base, ElementsAre(0, 1, 2));
}

TEST_F(RestartedEpochTest, CheckpointAfterARestartIsOfTheFirstStep) {
  EpochChange change = ChangeOf({At(0, 14)});
  change.checkpoint = true;
  EXPECT_EQ(Restarted(change).job->checkpoint_round, 6);
}

TEST_F(RestartedEpochTest, NeedsAWorker) {
  const auto next = MakeRestartedEpoch(*job_, 7, {5, 18}, ChangeOf({}));
  EXPECT_EQ(next.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Restarted(ChangeOf({}, {4})).job->workers,
              ElementsAre(EpochWorker{4, 6}));
}

// ---- Primary and backup of each shard in the next epoch.

JobPtr BackedUp(int shards, std::vector<ShardServers> shard_servers = {}) {
  JobOptions options;
  options.backup = true;
  const JobPtr job = TestJob(
      2, shards,
      {VectorLayer("a", 2), VectorLayer("b", 2), VectorLayer("c", 2)}, options);
  if (shard_servers.empty()) return job;
  return EpochAfter(*job,
                    [&](Job& next) { next.shard_servers = shard_servers; });
}

// Servers that live, and those that have come.
EpochChange Servers(const std::vector<int>& live,
                    const std::vector<int>& come = {},
                    const std::vector<int32_t>& whole = {}) {
  EpochChange change;
  for (const int rank : live) change.servers.push_back({rank, false, {}});
  for (const int rank : come) change.servers.push_back({rank, true, {}});
  change.current_backups = whole;
  return change;
}

struct HoldersCase {
  std::string name;
  int shards = 2;
  std::vector<ShardServers> now;  // Empty: as at first.
  EpochChange change;
  std::vector<ShardServers> next;  // Empty: a shard is lost.
};

class NextHoldersTest : public testing::TestWithParam<HoldersCase> {};

TEST_P(NextHoldersTest, Table) {
  const HoldersCase& param = GetParam();
  const JobPtr job = BackedUp(param.shards, param.now);
  const auto next = NextHolders(*job, param.change);
  if (param.next.empty()) {
    EXPECT_EQ(next.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(next.status().message()),
                HasSubstr("was lost: no server has all of its values"));
    return;
  }
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, param.next);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, NextHoldersTest,
    testing::Values(
        HoldersCase{
            "AllLive", 2, {}, Servers({0, 1}), {{0, 1, true}, {1, 0, true}}},
        HoldersCase{
            "OneGone", 2, {}, Servers({1}), {{1, -1, false}, {1, -1, false}}},
        HoldersCase{"OneReplaced",
                    2,
                    {},
                    Servers({1}, {0}),
                    {{1, 0, false}, {1, 0, false}}},
        HoldersCase{"BothGone", 2, {}, Servers({}), {}},
        HoldersCase{"BothReplaced", 2, {}, Servers({}, {0, 1}), {}},
        HoldersCase{"StillAlone",
                    2,
                    {{1, -1, false}, {1, -1, false}},
                    Servers({1}),
                    {{1, -1, false}, {1, -1, false}}},
        HoldersCase{"OneComes",
                    2,
                    {{1, -1, false}, {1, -1, false}},
                    Servers({1}, {0}),
                    {{1, 0, false}, {1, 0, false}}},
        HoldersCase{"TheLastOneGoes",
                    2,
                    {{1, -1, false}, {1, -1, false}},
                    Servers({}, {0, 1}),
                    {}},
        HoldersCase{"NotWholeYet",
                    2,
                    {{1, 0, false}, {1, 0, false}},
                    Servers({0, 1}),
                    {{1, 0, false}, {1, 0, false}}},
        HoldersCase{"OneIsWhole",
                    2,
                    {{1, 0, false}, {1, 0, false}},
                    Servers({0, 1}, {}, {1}),
                    {{1, 0, false}, {1, 0, true}}},
        // Its own shard goes back.
        HoldersCase{"BothAreWhole",
                    2,
                    {{1, 0, false}, {1, 0, true}},
                    Servers({0, 1}, {}, {0, 1}),
                    {{0, 1, true}, {1, 0, true}}},
        HoldersCase{"WholeAndReplaced",
                    2,
                    {{1, 0, false}, {1, 0, false}},
                    Servers({1}, {0}, {0, 1}),
                    {{1, 0, false}, {1, 0, false}}},
        HoldersCase{"WholeAndGone",
                    2,
                    {{1, 0, false}, {1, 0, false}},
                    Servers({1}, {}, {0, 1}),
                    {{1, -1, false}, {1, -1, false}}},
        HoldersCase{"WholeAsItsServerGoes",
                    2,
                    {{1, 0, false}, {1, 0, false}},
                    Servers({0}, {}, {0, 1}),
                    {{0, -1, false}, {0, -1, false}}},
        HoldersCase{"WholeAsItsServerIsReplaced",
                    2,
                    {{1, 0, true}, {1, 0, true}},
                    Servers({0}, {1}),
                    {{0, 1, false}, {0, 1, false}}},
        HoldersCase{"NotWholeAsItsServerGoes",
                    2,
                    {{1, 0, true}, {1, 0, false}},
                    Servers({0}, {1}),
                    {}},
        HoldersCase{"NobodyIsWhole",
                    2,
                    {{1, -1, false}, {1, -1, false}},
                    Servers({1}, {}, {0, 1, 2, -1}),
                    {{1, -1, false}, {1, -1, false}}},
        HoldersCase{"OfThreeOneGone",
                    3,
                    {},
                    Servers({0, 1}),
                    {{0, 1, true}, {1, -1, false}, {0, -1, false}}},
        HoldersCase{"OfThreeTwoGone", 3, {}, Servers({0}), {}},
        HoldersCase{"OfThreeTwoGoneAfterEachOther",
                    3,
                    {{0, 1, true}, {1, -1, false}, {0, -1, false}},
                    Servers({0}),
                    {}},
        HoldersCase{"OfThreeOneBack",
                    3,
                    {{0, 1, true}, {1, -1, false}, {0, -1, false}},
                    Servers({0, 1}, {2}),
                    {{0, 1, true}, {1, 2, false}, {0, 2, false}}},
        HoldersCase{"OfThreeWholeAgain",
                    3,
                    {{0, 1, true}, {1, 2, false}, {0, 2, false}},
                    Servers({0, 1, 2}, {}, {1, 2}),
                    {{0, 1, true}, {1, 2, true}, {2, 0, true}}},
        HoldersCase{
            "OfFourTwoThatShareNothing",
            4,
            {},
            Servers({1, 3}),
            {{1, -1, false}, {1, -1, false}, {3, -1, false}, {3, -1, false}}},
        HoldersCase{"OfFourTwoNeighbours", 4, {}, Servers({0, 3}), {}}),
    [](const auto& info) { return info.param.name; });

TEST(NextHoldersTest, WithoutBackupsEveryServerIsNeeded) {
  const JobPtr job = TestJob(2, 2, {VectorLayer("a", 2), VectorLayer("b", 2)});
  EXPECT_EQ(*NextHolders(*job, Servers({0, 1}, {}, {0, 1})),
            FirstShardServers(2, false));
  for (const EpochChange& change : {Servers({0}), Servers({0}, {1})}) {
    EXPECT_THAT(std::string(NextHolders(*job, change).status().message()),
                HasSubstr("shard 1 was lost"));
  }
}

// The job that comes of it can be made, and is what all members are told.
TEST(NextHoldersTest, NextEpochHasTheNextHolders) {
  const JobPtr job = BackedUp(2);
  EpochChange change = Servers({1});
  change.servers[0].report.closed_rounds = {{0, 3}, {1, 4}};
  EpochChange::Worker worker;
  worker.report.begun_step = 4;
  change.workers = {worker};
  const auto next = MakeNextEpoch(*job, 6, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->job->shard_servers, *NextHolders(*job, change));
  EXPECT_FALSE(next->job->Holds(0));
  EXPECT_TRUE(next->job->Holds(1));
  change.servers.clear();
  EXPECT_EQ(MakeNextEpoch(*job, 6, change).status().code(),
            absl::StatusCode::kAborted);
}

// If all workers are gone, the closed rounds of the next primaries count, and
// not those of a backup that is behind.
TEST(NextHoldersTest, NewWorkersGoOnFromTheNextPrimaries) {
  const JobPtr job = BackedUp(2, {{1, 0, false}, {1, 0, false}});
  EpochChange change = Servers({0, 1});
  change.servers[0].report.closed_rounds = {{0, kInitialRound},
                                            {1, kInitialRound}};
  change.servers[1].report.closed_rounds = {{0, 8}, {1, 7}};
  change.joiners = {5};
  const auto next = MakeNextEpoch(*job, 7, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->job->workers, ElementsAre(EpochWorker{5, 8}));
}

// All live servers have the shards' files.
TEST(FreshHoldersTest, FreshHoldersAreTheFirstOnesOfTheLiveServers) {
  const JobPtr job =
      BackedUp(3, {{1, 0, false}, {1, 2, false}, {2, -1, false}});
  const auto restarted = [&](const EpochChange& servers) {
    EpochChange change = servers;
    change.joiners = {5};
    return MakeRestartedEpoch(*job, 7, {5, 18}, change);
  };
  for (const EpochChange& all :
       {Servers({0, 1, 2}), Servers({1}, {0, 2}), Servers({}, {0, 1, 2})}) {
    const auto next = restarted(all);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->job->shard_servers, FirstShardServers(3, true));
  }
  const auto two = restarted(Servers({1}, {2}));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(two->job->shard_servers,
              ElementsAre(ShardServers{1, -1, false}, ShardServers{1, 2, true},
                          ShardServers{2, -1, false}));
  const auto one = restarted(Servers({1}));
  EXPECT_EQ(one.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(one.status().message()),
              HasSubstr("shard 2 was lost: server 2 is not a member, nor is "
                        "the server after it"));
}

TEST(FreshHoldersTest, RestartWithoutBackupsNeedsAllServers) {
  const JobPtr job = TestJob(2, 2, {VectorLayer("a", 2), VectorLayer("b", 2)});
  EpochChange change = Servers({0});
  change.joiners = {5};
  EXPECT_EQ(MakeRestartedEpoch(*job, 7, {5, 18}, change).status().code(),
            absl::StatusCode::kAborted);
  change = Servers({0}, {1});
  change.joiners = {5};
  const auto next = MakeRestartedEpoch(*job, 7, {5, 18}, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->job->shard_servers, FirstShardServers(2, false));
}

}  // namespace
}  // namespace nereus
