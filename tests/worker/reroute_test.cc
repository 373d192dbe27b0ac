// A layer that gets another route in the job's next plan, on one worker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"

namespace nereus {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kElements = 6;

std::vector<float> Values() { return {1, 2, 3, 4, 5, 6}; }

std::vector<Effects::Sent> Kind(const Effects& effects, FrameKind kind) {
  std::vector<Effects::Sent> found;
  for (const auto& sent : effects.sent) {
    if (sent.frame.header.kind == kind) found.push_back(sent);
  }
  return found;
}

// Single worker of a job. Its plan uses servers and ends with round 0.
class RerouteTest : public testing::Test {
 protected:
  static JobPtr EndingJob(OptimizerPlace place) {
    JobOptions options;
    options.optimizer_place = place;
    return EpochAfter(
        *TestJob(1, 1, {VectorLayer("scale", kElements)}, options),
        [](Job& job) { job.switch_round = 0; });
  }
  // Returns the job in the next epoch, whose plan uses a ring.
  // `servers_updated`: the servers have updated the layer so far, and have it
  // as of round 0.
  static JobPtr Rerouted(const Job& job, bool servers_updated) {
    return EpochAfter(job, [&](Job& next) {
      next.switch_round = kInitialRound;
      next.routes[0].scheme = Scheme::kRing;
      next.history.first_step = 1;
      if (servers_updated) {
        next.history.base_round = 0;
        next.workers = {{0, 1}};
      }
    });
  }

  // Does step 0, the last step of the plan.
  static Effects DoStep(WorkerUnderTest& worker) {
    worker.Start();
    worker.ReceiveResults(kInitialRound, Values());
    EXPECT_TRUE(Begin(worker, 0).begun);
    worker.Push(0, FloatBuffer(std::vector<float>(kElements, 0)));
    EXPECT_FALSE(worker.machine().Report().ready_to_switch);
    return worker.ReceiveResults(0, Values());
  }

  struct Begun {
    bool begun = false;
    Effects effects;
  };
  static Begun Begin(WorkerUnderTest& worker, int64_t step) {
    Outbox out;
    const bool begun = worker.machine().BeginStep(step, out);
    return {begun, Carry(out)};
  }
};

// A worker that has left stays in the job until no other worker needs its
// layers.
TEST_F(RerouteTest, LeaverFetchesNothingInANewPlan) {
  WorkerUnderTest worker(EndingJob(OptimizerPlace::kServer), 0);
  DoStep(worker);
  Outbox out;
  worker.machine().OnLeave(out);
  Carry(out);
  const JobPtr next = Rerouted(*worker.job(), /*servers_updated=*/true);
  const Effects entered = worker.Enter(EpochAfter(*next, [](Job& job) {
    job.workers = {{1, 1}};
    job.crew.left_workers = {0};
  }));
  EXPECT_THAT(entered.sent, IsEmpty());
  EXPECT_EQ(worker.syncer().Missing(), "");
  EXPECT_EQ(worker.syncer().done_round(), 0);
}

TEST_F(RerouteTest, NoStepBeginsAfterThePlansLast) {
  WorkerUnderTest worker(EndingJob(OptimizerPlace::kServer), 0);
  const Effects done = DoStep(worker);
  ASSERT_THAT(done.messages, SizeIs(1));
  EXPECT_EQ(std::get<ReadyToSwitch>(done.messages[0]).epoch,
            worker.job()->epoch);
  EXPECT_TRUE(worker.machine().Report().ready_to_switch);
  EXPECT_FALSE(Begin(worker, 1).begun);
}

TEST_F(RerouteTest, LayersThatServersUpdatedAreFetchedWhenTheNextStepBegins) {
  WorkerUnderTest worker(EndingJob(OptimizerPlace::kServer), 0);
  DoStep(worker);
  // Entering the epoch fetches nothing, because the caller may be using the
  // parameters.
  const Effects entered =
      worker.Enter(Rerouted(*worker.job(), /*servers_updated=*/true));
  EXPECT_THAT(entered.sent, IsEmpty());
  EXPECT_FALSE(worker.machine().Report().fetching);
  EXPECT_FALSE(worker.machine().Report().ready_to_switch);

  const Begun first = Begin(worker, 1);
  EXPECT_FALSE(first.begun);
  const auto pulls = Kind(first.effects, FrameKind::kPull);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(pulls[0].frame.header.round, 0);
  EXPECT_EQ(pulls[0].to, worker.ShardOf(0));
  EXPECT_TRUE(worker.machine().Report().fetching);
  EXPECT_FALSE(Begin(worker, 1).begun);

  worker.ReceiveResults(0, {6, 5, 4, 3, 2, 1});
  const Effects state =
      DeliverAll(worker.machine(), worker.ShardOf(0),
                 FramesOf(*worker.job(), worker.ShardOf(0), FrameKind::kResult,
                          0, 0, 0, {7, 8, 9, 10, 11, 12}, /*part=*/1));
  ASSERT_THAT(state.done, SizeIs(1));
  EXPECT_EQ(state.done[0].round, 0);
  EXPECT_EQ(FloatsOf(worker.parameters())[0], 6);
  EXPECT_TRUE(Begin(worker, 1).begun);
  // A single worker on a ring is done with the round at once.
  EXPECT_THAT(
      worker.Push(1, FloatBuffer(std::vector<float>(kElements, 0))).done,
      SizeIs(1));
  // The velocity comes from the server: 0.9 * 7, times the learning rate 0.01.
  EXPECT_NEAR(FloatsOf(worker.parameters())[0], 6 - 0.063, 0.01);
}

TEST_F(RerouteTest, LayersThatTheCallerUpdatesAreNotFetched) {
  WorkerUnderTest worker(EndingJob(OptimizerPlace::kWorker), 0);
  DoStep(worker);
  EXPECT_THAT(
      worker.Enter(Rerouted(*worker.job(), /*servers_updated=*/false)).sent,
      IsEmpty());
  const Begun begun = Begin(worker, 1);
  EXPECT_TRUE(begun.begun);
  EXPECT_THAT(begun.effects.sent, IsEmpty());
}

// If the caller updates, a round is saved when the next round is pushed.
TEST_F(RerouteTest, WorkerSendsTheLastRoundsCheckpointUnderTheNextPlan) {
  JobPtr job = EndingJob(OptimizerPlace::kWorker);
  job = EpochAfter(*job, [](Job& next) { next.checkpoint_round = 0; });
  WorkerUnderTest worker(job, 0);
  EXPECT_THAT(Kind(DoStep(worker), FrameKind::kOwned), IsEmpty());
  worker.Enter(Rerouted(*worker.job(), /*servers_updated=*/false));
  Begin(worker, 1);
  const Effects pushed =
      worker.Push(1, FloatBuffer(std::vector<float>(kElements, 0)));
  const auto saved = Kind(pushed, FrameKind::kOwned);
  ASSERT_THAT(saved, SizeIs(1));
  EXPECT_EQ(saved[0].frame.header.round, 0);
  EXPECT_EQ(ValuesIn(pushed.sent, FrameKind::kOwned, 0, 0, 0, kElements),
            Values());
}

}  // namespace
}  // namespace nereus
