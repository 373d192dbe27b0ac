#include "worker/machine/caller.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace nereus {
namespace {

// Returns the job of an epoch with workers `ranks` and first new step
// `first_step`. The workers run on `hosts`, in their order; each on its own
// host if that is empty.
JobPtr Epoch(int64_t first_step, int64_t contributions_before,
             std::vector<int> ranks, std::vector<int> hosts = {}) {
  Job job;
  job.history.first_step = first_step;
  job.history.contributions_before = contributions_before;
  for (size_t i = 0; i < ranks.size(); ++i) {
    job.workers.push_back({ranks[i], 0, hosts.empty() ? -1 : hosts[i]});
  }
  job.seating = Seating(job.workers, job.layers, job.placement);
  return std::make_shared<const Job>(std::move(job));
}

TEST(StepPlanTest, WorkersOfAnEpochShareItsSteps) {
  StepPlan plan;
  plan.Enter(Epoch(0, 0, {0, 2, 5}));
  const StepInfo first = plan.InfoOf(0, 2);
  EXPECT_EQ(first.position, 1);
  EXPECT_EQ(first.workers, 3);
  EXPECT_EQ(first.contributions_before, 0);
  EXPECT_EQ(plan.InfoOf(4, 2).contributions_before, 12);
}

TEST(StepPlanTest, PositionsFollowRanksWhateverTheHosts) {
  StepPlan plan;
  plan.Enter(Epoch(0, 0, {0, 1, 2, 5}, /*hosts=*/{4, 3, 4, 4}));
  const StepInfo of_2 = plan.InfoOf(0, 2);
  EXPECT_EQ(of_2.position, 2);
  EXPECT_EQ(of_2.local_position, 1);
  EXPECT_EQ(of_2.local_workers, 3);
  const StepInfo of_1 = plan.InfoOf(0, 1);
  EXPECT_EQ(of_1.position, 1);
  EXPECT_EQ(of_1.workers, 4);
  EXPECT_EQ(of_1.local_position, 0);
  EXPECT_EQ(of_1.local_workers, 1);
}

// Worker 1 dies while a worker is in step 7.
TEST(StepPlanTest, AStepThatHadBegunKeepsTheSharesOfItsEpoch) {
  StepPlan plan;
  plan.Enter(Epoch(0, 0, {0, 1, 2}));
  plan.Enter(Epoch(/*first_step=*/8, 24, {0, 2}));
  const StepInfo old = plan.InfoOf(7, 2);
  EXPECT_EQ(old.position, 2);
  EXPECT_EQ(old.workers, 3);
  EXPECT_EQ(old.contributions_before, 21);
  const StepInfo next = plan.InfoOf(8, 2);
  EXPECT_EQ(next.position, 1);
  EXPECT_EQ(next.workers, 2);
  EXPECT_EQ(next.contributions_before, 24);
}

TEST(StepPlanTest, AStepMayBelongToAnEpochBeforeTheLastTwo) {
  StepPlan plan;
  plan.Enter(Epoch(0, 0, {0, 1}));
  plan.Enter(Epoch(5, 10, {0}));
  plan.Enter(Epoch(5, 10, {0, 3}));
  EXPECT_EQ(plan.InfoOf(4, 0).contributions_before, 8);
  EXPECT_EQ(plan.InfoOf(5, 0).workers, 2);
}

TEST(StepPlanTest, AWorkerThatJoinsBeginsInItsFirstEpoch) {
  StepPlan plan;
  plan.Enter(Epoch(0, 0, {0}));
  plan.Enter(Epoch(6, 6, {0, 4}));
  const StepInfo info = plan.InfoOf(5, 4);
  EXPECT_EQ(info.position, 1);
  EXPECT_EQ(info.workers, 2);
}

}  // namespace
}  // namespace nereus
