#include "worker/machine/send_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "tests/testing/machine_harness.h"
#include "worker/machine/worker_machine.h"

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

TEST(SendPlanTest, LayersGoAtOnceWithoutFusion) {
  for (const int64_t bytes : {kNoFusion, int64_t{0}, int64_t{40}}) {
    PlanUnderTest plan(Fused(bytes));
    EXPECT_THAT(Push(plan, 2, 0), ElementsAre(2));
    EXPECT_THAT(plan.TakeSends(), IsEmpty());
    EXPECT_THAT(Push(plan, 1, 0), ElementsAre(1));
    EXPECT_FALSE(plan.has_pushed_all());
    EXPECT_THAT(Push(plan, 0, 0), ElementsAre(0));
    EXPECT_TRUE(plan.has_pushed_all());
  }
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

// No wait lasts for ever, in whatever order the caller pushes and waits.
TEST(SendPlanTest, ADeferredLayerThatTheCallerWaitsForSendsAllThatAreDeferred) {
  for (const Overlap overlap : {Overlap::kWaitFree, Overlap::kNone}) {
    PlanUnderTest plan(Fused(1000, overlap));
    Push(plan, 2, 0);
    Push(plan, 1, 0);
    plan.OnHurry(0);  // Not pushed yet.
    EXPECT_THAT(plan.TakeSends(), IsEmpty());
    plan.OnHurry(2);
    EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1));
    EXPECT_THAT(Push(plan, 0, 0), ElementsAre(0));
  }
}

TEST(SendPlanTest, NothingGoesWhileTheMachineIsFrozen) {
  const JobPtr job = Fused(0);
  PlanUnderTest plan(job);
  plan.Freeze();
  EXPECT_TRUE(plan.is_frozen());
  PushAll(plan, 0);
  plan.OnHurry(1);
  EXPECT_THAT(plan.TakeSends(), IsEmpty());
  EXPECT_EQ(plan.TakeVote(), std::nullopt);

  plan.OnEpoch(job);
  EXPECT_FALSE(plan.is_frozen());
  EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1, 0));
  EXPECT_EQ(plan.TakeVote(), (Vote{0, true}));
}

TEST(SendPlanTest, AStepThatEndsSendsItsDeferredLayersFirst) {
  PlanUnderTest plan(Fused(1000));
  Push(plan, 2, 0);
  Push(plan, 1, 0);
  plan.EndStep();
  EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1));
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
  plan.OnHurry(0);
  EXPECT_THAT(plan.TakeSends(), IsEmpty());
  EXPECT_EQ(plan.TakeVote(), std::nullopt);

  plan.OnDone(job->pool.layer);
  EXPECT_FALSE(plan.awaits_choice());
  EXPECT_THAT(plan.TakeSends(), ElementsAre(2, 1, 0));
  EXPECT_EQ(plan.TakeVote(), (Vote{1, true}));
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

// Worker of two, with layers, 5 x 7, that have factors of two rows.
class PeerWorker {
 public:
  PeerWorker(int rank, Scheme scheme, const JobOptions& options,
             WireType wire = WireType::kFloat32)
      : rank_(rank),
        job_(TestJob(
            2, 1,
            {FactorLayer("a", 5, 7, true, 2), FactorLayer("b", 5, 7, true, 2)},
            options, scheme, wire)),
        machine_(job_, rank,
                 {{Buffer::AllocateZeroed(40 * 4), Buffer()},
                  {Buffer::AllocateZeroed(40 * 4), Buffer()}}) {
    Outbox out;
    machine_.Start(out);
    Carry(out);
    for (const int layer : {0, 1}) {
      DeliverAll(machine_, PeerId::Shard(0),
                 FramesOf(*job_, PeerId::Shard(0), FrameKind::kResult, layer, 0,
                          kInitialRound, std::vector<float>(40)));
    }
  }

  // Pushes a layer in step 0.
  Effects Push(int layer) {
    Outbox out;
    const absl::Status status =
        job_->routes[layer].scheme == Scheme::kFactor
            ? machine_.OnPushFactors(
                  layer, 0,
                  {FloatBuffer(IntegerValues(10, rank_)),
                   FloatBuffer(IntegerValues(14, 0)), Buffer()},
                  out)
            : machine_.OnPush(layer, 0, Buffer::AllocateZeroed(40 * 4), out);
    EXPECT_TRUE(status.ok()) << status;
    return Carry(out);
  }
  Effects Hurry(int layer) {
    Outbox out;
    machine_.OnHurry(layer, out);
    return Carry(out);
  }
  Effects EnterNextEpoch() {
    job_ = EpochAfter(*job_);
    Outbox out;
    machine_.OnEpoch(job_, out);
    return Carry(out);
  }
  // Delivers what the other worker sent. Returns the effects.
  Effects Bring(const Effects& effects) {
    Effects all;
    for (const auto& sent : effects.sent) {
      if (!sent.IsFor(PeerId::Worker(rank_))) continue;
      const auto delivery =
          Deliver(machine_, PeerId::Worker(1 - rank_), sent.frame);
      EXPECT_TRUE(delivery.ok()) << delivery.status();
      absl::c_copy(delivery->effects.sent, std::back_inserter(all.sent));
      absl::c_copy(delivery->effects.done, std::back_inserter(all.done));
    }
    return all;
  }
  int64_t done(int layer) const { return machine_.syncer(layer).done_round(); }

 private:
  const int rank_;
  JobPtr job_;
  WorkerMachine machine_;
};

JobOptions With(Overlap overlap) {
  JobOptions options;
  options.overlap = overlap;
  options.optimizer.momentum = 0.0f;
  return options;
}

// Returns the layers of the frames of a kind, in order, each once.
std::vector<int> LayersIn(const Effects& effects, FrameKind kind) {
  std::vector<int> layers;
  for (const auto& sent : effects.sent) {
    const auto layer = static_cast<int>(sent.frame.header.layer);
    if (sent.frame.header.kind != kind) continue;
    if (layers.empty() || layers.back() != layer) layers.push_back(layer);
  }
  return layers;
}

// A layer sends two rows of five and seven values, as 16 bits.
TEST(MachineSendsTest, TheFusionThresholdCountsBytesOnTheWire) {
  constexpr int64_t kLayerBytes = 2 * (5 + 7) * 2;
  for (const int64_t more : {0, 1}) {
    JobOptions options = With(Overlap::kWaitFree);
    options.fusion_bytes = kLayerBytes + more;
    PeerWorker worker(0, Scheme::kFactor, options, WireType::kBfloat16);
    EXPECT_EQ(worker.Push(1).sent.empty(), more == 1);
  }
}

TEST(MachineSendsTest, WithoutOverlapANewEpochSendsNoHalfStep) {
  PeerWorker worker(0, Scheme::kServer, With(Overlap::kNone));
  worker.Push(1);
  EXPECT_THAT(worker.EnterNextEpoch().sent, IsEmpty());
  EXPECT_THAT(LayersIn(worker.Push(0), FrameKind::kContribution),
              ElementsAre(1, 0));
  // A step that an epoch has interrupted goes again as a whole.
  EXPECT_THAT(LayersIn(worker.EnterNextEpoch(), FrameKind::kContribution),
              ElementsAre(0, 1));
}

// The program may wait for its results only in the next forward pass: they come
// all the same.
TEST(MachineSendsTest, ARoundEndsWhetherOrNotTheCallerWaits) {
  for (const Scheme scheme :
       {Scheme::kFactor, Scheme::kRing, Scheme::kDirect}) {
    PeerWorker a(0, scheme, With(Overlap::kWaitFree));
    PeerWorker b(1, scheme, With(Overlap::kWaitFree));
    Effects from_a = a.Push(1);
    Effects from_b = b.Push(1);
    while (!from_a.sent.empty() || !from_b.sent.empty()) {
      const Effects next_from_b = b.Bring(from_a);
      from_a = a.Bring(from_b);
      from_b = next_from_b;
    }
    EXPECT_EQ(a.done(1), 0);
    EXPECT_EQ(b.done(1), 0);
  }
}

}  // namespace
}  // namespace nereus
