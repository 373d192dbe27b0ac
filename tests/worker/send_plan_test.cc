#include "worker/machine/send_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Vote = SendPlan::Vote;

// Returns a job with three layers of 40 bytes each.
JobPtr ThreeLayers(JobOptions options = {}) {
  options.optimizer.momentum = 0.0f;
  return TestJob(
      2, 1, {VectorLayer("a", 10), VectorLayer("b", 10), VectorLayer("c", 10)},
      options);
}

JobPtr Fused(int64_t bytes, Overlap overlap = Overlap::kWaitFree) {
  JobOptions options;
  options.fusion_bytes = bytes;
  options.overlap = overlap;
  return ThreeLayers(options);
}

// A plan with the ledgers that it reads. All layers have their initial
// parameters.
struct PlanUnderTest : SendPlan {
  explicit PlanUnderTest(const JobPtr& job) : SendPlan(job, ledgers) {
    for (int layer = 0; layer < static_cast<int>(job->layers.size()); ++layer) {
      ledgers.emplace_back(job, layer, /*rank=*/0, verdicts);
      ledgers.back().OnFetched(kInitialRound);
    }
  }

  // Notes that the open round of a layer is done.
  void OnDone(int layer) {
    ledgers[layer].Finish(/*contributors=*/2, Buffer());
  }

  Verdicts verdicts;
  std::vector<RoundLedger> ledgers;
};

// Pushes a layer, of which the round before is done, and returns the layers to
// send.
std::vector<int> Push(PlanUnderTest& plan, int layer, int64_t step,
                      bool fit = true) {
  while (plan.ledgers[layer].done_round() < step - 1) plan.OnDone(layer);
  plan.ledgers[layer].Push(step);
  plan.OnPush(layer, step, fit);
  return plan.TakeSends();
}

// Pushes all layers, last first, and ignores the layers to send.
void PushAll(PlanUnderTest& plan, int64_t step) {
  for (const int layer : {2, 1, 0}) Push(plan, layer, step);
}

// Returns the layers that the plan gathers, without any result in between.
std::vector<int> Gathers(PlanUnderTest& plan) {
  std::vector<int> layers;
  while (const std::optional<int> layer = plan.TakeGather()) {
    layers.push_back(*layer);
  }
  return layers;
}

TEST(SendPlanTest, LayersGoAtOnceWithoutFusion) {
  PlanUnderTest plan(ThreeLayers());
  EXPECT_THAT(Push(plan, 2, 0), ElementsAre(2));
  EXPECT_THAT(plan.TakeSends(), IsEmpty());
  EXPECT_THAT(Push(plan, 1, 0), ElementsAre(1));
  EXPECT_FALSE(plan.has_pushed_all());
  EXPECT_THAT(Push(plan, 0, 0), ElementsAre(0));
  EXPECT_TRUE(plan.has_pushed_all());
}

TEST(SendPlanTest, FusionDefersLayersUntilThereAreEnoughBytes) {
  PlanUnderTest plan(Fused(80));
  EXPECT_THAT(Push(plan, 2, 0), IsEmpty());
  EXPECT_THAT(Push(plan, 1, 0), ElementsAre(2, 1));
  EXPECT_THAT(Push(plan, 0, 0), ElementsAre(0));
}

TEST(SendPlanTest, ANewThresholdHoldsUntilAnEpochBringsAnother) {
  PlanUnderTest plan(Fused(80));
  plan.SetFusion(40);
  EXPECT_THAT(Push(plan, 2, 0), ElementsAre(2));
  plan.OnEpoch(Fused(80));
  EXPECT_THAT(Push(plan, 1, 0), ElementsAre(1));
  plan.OnEpoch(Fused(1000));
  EXPECT_THAT(Push(plan, 2, 1), IsEmpty());
}

TEST(SendPlanTest, WithoutOverlapTheStepGoesAsAWhole) {
  PlanUnderTest plan(Fused(0, Overlap::kNone));
  EXPECT_THAT(Push(plan, 2, 0), IsEmpty());
  EXPECT_THAT(Push(plan, 0, 0), IsEmpty());
  EXPECT_THAT(Push(plan, 1, 0), ElementsAre(2, 0, 1));
}

TEST(SendPlanTest, ADeferredLayerThatTheCallerWaitsForSendsAllThatAreDeferred) {
  PlanUnderTest plan(Fused(1000));
  Push(plan, 2, 0);
  Push(plan, 1, 0);
  plan.OnWait(0);  // Not pushed yet.
  EXPECT_THAT(plan.TakeSends(), IsEmpty());
  plan.OnWait(2);
  EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1));
  Gathers(plan);
  EXPECT_THAT(Push(plan, 0, 0), ElementsAre(0));
}

TEST(SendPlanTest, NothingGoesWhileTheMachineIsFrozen) {
  const JobPtr job = Fused(0, Overlap::kDecoupled);
  PlanUnderTest plan(job);
  plan.Freeze();
  EXPECT_TRUE(plan.is_frozen());
  PushAll(plan, 0);
  plan.OnWait(1);
  EXPECT_THAT(plan.TakeSends(), IsEmpty());
  EXPECT_EQ(plan.TakeVote(), std::nullopt);
  EXPECT_THAT(Gathers(plan), IsEmpty());

  plan.OnEpoch(job);
  EXPECT_FALSE(plan.is_frozen());
  EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1, 0));
  EXPECT_EQ(plan.TakeVote(), (Vote{0, true}));
  EXPECT_THAT(Gathers(plan), ElementsAre(1, 0, 1, 2));
}

TEST(SendPlanTest, AStepThatEndsSendsAndGathersItsOpenLayersFirst) {
  PlanUnderTest plan(Fused(1000, Overlap::kDecoupled));
  Push(plan, 2, 0);
  Push(plan, 1, 0);
  plan.EndStep();
  EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1));
  EXPECT_THAT(Gathers(plan), ElementsAre(1, 2));
  EXPECT_THAT(Push(plan, 0, 1), IsEmpty());
  EXPECT_EQ(plan.step(), 1);
}

TEST(SendPlanTest, OneVoteIsDueWhenTheStepIsComplete) {
  PlanUnderTest plan(ThreeLayers());
  Push(plan, 2, 0);
  Push(plan, 1, 0, /*fit=*/false);
  EXPECT_EQ(plan.TakeVote(), std::nullopt);
  Push(plan, 0, 0);
  EXPECT_EQ(plan.TakeVote(), (Vote{0, false}));
  EXPECT_EQ(plan.TakeVote(), std::nullopt);
  // The servers of the next epoch do not have the vote.
  plan.OnEpoch(ThreeLayers());
  EXPECT_EQ(plan.TakeVote(), (Vote{0, false}));
  PushAll(plan, 1);
  EXPECT_EQ(plan.TakeVote(), (Vote{1, true}));
}

TEST(SendPlanTest, LayersAreGatheredInForwardOrderWithinAWindow) {
  // Two such layers fill the window.
  constexpr int64_t kElements = int64_t{1} << 23;
  JobOptions options;
  options.overlap = Overlap::kDecoupled;
  std::vector<LayerSpec> layers;
  for (int i = 0; i < 5; ++i) {
    layers.push_back(VectorLayer("layer" + std::to_string(i), kElements));
  }
  PlanUnderTest plan(TestJob(2, 1, std::move(layers), options));
  for (int layer = 4; layer > 0; --layer) Push(plan, layer, 0);
  EXPECT_THAT(Gathers(plan), IsEmpty());
  Push(plan, 0, 0);
  EXPECT_THAT(Gathers(plan), ElementsAre(0, 1));
  plan.OnDone(1);
  EXPECT_THAT(Gathers(plan), ElementsAre(2));
  plan.OnWait(4);  // The waited layer is gathered although the window is full.
  EXPECT_THAT(Gathers(plan), ElementsAre(4));
  plan.OnDone(0);
  plan.OnDone(4);
  EXPECT_THAT(Gathers(plan), ElementsAre(3));
}

TEST(SendPlanTest, WithoutDecouplingOnlyAwaitedLayersAreGathered) {
  PlanUnderTest plan(ThreeLayers());
  PushAll(plan, 0);
  EXPECT_THAT(Gathers(plan), IsEmpty());
  plan.OnWait(1);
  plan.OnWait(2);
  plan.OnDone(2);  // Layer 2 is done, so only layer 1 is gathered.
  EXPECT_THAT(Gathers(plan), ElementsAre(1));
}

// A new plan's first step fetches layers that servers have updated. No round of
// these layers is open.
TEST(SendPlanTest, ALayerThatIsFetchedAgainIsNotGathered) {
  PlanUnderTest plan(Fused(0, Overlap::kDecoupled));
  PushAll(plan, 0);
  Gathers(plan);
  for (const int layer : {0, 1, 2}) plan.OnDone(layer);
  plan.ledgers[1].Restart();
  plan.OnWait(1);
  EXPECT_THAT(Gathers(plan), IsEmpty());
  plan.ledgers[1].OnFetched(0);
  PushAll(plan, 1);
  EXPECT_THAT(Gathers(plan), ElementsAre(0, 1, 2));
}

TEST(SendPlanTest, InASparseJobAStepWaitsForItsChoiceOfBlocks) {
  JobOptions options;
  options.sparsity.share = 0.5;
  const JobPtr job = ThreeLayers(options);
  ASSERT_EQ(job->pool.layer, 3);
  PlanUnderTest plan(job);
  EXPECT_FALSE(plan.awaits_choice());
  PushAll(plan, 0);
  EXPECT_EQ(plan.TakeVote(), (Vote{0, true}));
  for (const int layer : {0, 1, 2}) plan.OnDone(layer);

  PushAll(plan, 1);
  EXPECT_TRUE(plan.awaits_choice());
  plan.OnWait(0);
  EXPECT_THAT(plan.TakeSends(), IsEmpty());
  EXPECT_EQ(plan.TakeVote(), std::nullopt);
  EXPECT_THAT(Gathers(plan), IsEmpty());

  plan.OnDone(job->pool.layer);
  EXPECT_FALSE(plan.awaits_choice());
  EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1, 0));
  EXPECT_EQ(plan.TakeVote(), (Vote{1, true}));
  EXPECT_THAT(Gathers(plan), ElementsAre(0));
}

TEST(SendPlanTest, InASparseJobOneVoteIsDueInEachStepAndEpoch) {
  JobOptions options;
  options.sparsity.share = 0.5;
  const JobPtr job = ThreeLayers(options);
  PlanUnderTest plan(job);
  PushAll(plan, 0);
  EXPECT_EQ(plan.TakeVote(), (Vote{0, true}));
  // The choice for the next step is no reason for another vote on this one.
  plan.OnDone(job->pool.layer);
  EXPECT_EQ(plan.TakeVote(), std::nullopt);

  PushAll(plan, 1);
  EXPECT_EQ(plan.TakeVote(), (Vote{1, true}));
  PushAll(plan, 2);
  // In the next epoch, too, the vote waits for the choice.
  plan.OnEpoch(job);
  EXPECT_EQ(plan.TakeVote(), std::nullopt);
  plan.OnDone(job->pool.layer);
  EXPECT_EQ(plan.TakeVote(), (Vote{2, true}));
  EXPECT_EQ(plan.TakeVote(), std::nullopt);
}

}  // namespace
}  // namespace nereus
