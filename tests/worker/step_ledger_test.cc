#include "worker/machine/step_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"

namespace nereus {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Done = StepLedger::Done;

StepInfo Step(int64_t step) {
  StepInfo info;
  info.step = step;
  return info;
}

StepLedger TwoLayers() { return StepLedger({"first", "second"}); }

void FinishBoth(StepLedger& ledger, int64_t round) {
  for (const int layer : {0, 1}) {
    ledger.Finish(layer, round, /*skipped=*/false);
  }
}

// Returns a ledger in which both layers have their initial parameters and step
// 0 has begun.
StepLedger Started() {
  StepLedger ledger = TwoLayers();
  ledger.Restart(/*epoch=*/1);
  FinishBoth(ledger, kInitialRound);
  ledger.Begin(Step(0));
  return ledger;
}

std::string RefusedPush(StepLedger& ledger, int layer, int64_t step) {
  const absl::Status status = ledger.BeginPush(layer, step).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(StepLedgerTest, LayersOutsideTheModelAreRefused) {
  StepLedger ledger = Started();
  for (const int layer : {-1, 2, 1 << 30}) {
    for (const absl::Status& status :
         {ledger.CheckLayer(layer), ledger.BeginPush(layer, 0).status(),
          ledger.CheckAwaited(layer, 0)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("layer " + std::to_string(layer)),
                        HasSubstr("the model has 2")));
    }
  }
  EXPECT_TRUE(ledger.CheckLayer(0).ok());
  EXPECT_TRUE(ledger.CheckLayer(1).ok());
}

TEST(StepLedgerTest, ALayerIsPushedOnceInEachStepAndTheErrorNamesIt) {
  StepLedger ledger = Started();
  const auto refused = [&](int64_t step) {
    EXPECT_THAT(RefusedPush(ledger, 1, step),
                AllOf(HasSubstr("layer second"),
                      HasSubstr("step " + std::to_string(step))));
  };
  for (const int64_t step : {-2, -1, 1, 5}) refused(step);
  ASSERT_TRUE(ledger.BeginPush(1, 0).ok());
  for (const int64_t step : {0, 1}) refused(step);
  EXPECT_EQ(ledger.Finish(1, 0, /*skipped=*/false), Done::kRound);
  for (const int64_t step : {-1, 0, 1, 2}) refused(step);
  EXPECT_TRUE(ledger.BeginPush(0, 0).ok());
}

TEST(StepLedgerTest, APushBeforeTheWaitForTheLastOneSaysThatAWaitIsMissing) {
  StepLedger ledger = Started();
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  ledger.Begin(Step(1));
  EXPECT_THAT(RefusedPush(ledger, 0, 1),
              HasSubstr("step 0 is not waited for: Wait or WaitAll comes "
                        "before the next push"));
}

TEST(StepLedgerTest, NothingIsPushedBeforeAStepHasBegun) {
  StepLedger ledger = TwoLayers();
  EXPECT_THAT(RefusedPush(ledger, 0, 0),
              HasSubstr("no step has begun: call BeginStep first"));
  FinishBoth(ledger, kInitialRound);
  EXPECT_THAT(RefusedPush(ledger, 0, 0),
              AllOf(HasSubstr("layer first"),
                    HasSubstr("no step has begun: call BeginStep first")));
}

TEST(StepLedgerTest, StepsBeginOneAfterTheOther) {
  StepLedger ledger = TwoLayers();
  ledger.Restart(/*epoch=*/1);
  FinishBoth(ledger, 6);
  EXPECT_EQ(ledger.next_step(), 7);
  const auto last = StepLedger(ledger).BeginLeave();
  EXPECT_EQ((*last)->step, 6);
  EXPECT_EQ((*last)->life, 1);
  EXPECT_FALSE(ledger.HasBegun(7));
  ledger.Begin(Step(7));
  EXPECT_TRUE(ledger.HasBegun(7));
  EXPECT_EQ(ledger.StepToBegin()->step, 8);
}

TEST(StepLedgerTest, AStepThatWasAskedForIsTheNextOneUntilItIsTaken) {
  StepLedger ledger = TwoLayers();
  ledger.Restart(/*epoch=*/1);
  FinishBoth(ledger, kInitialRound);
  EXPECT_TRUE(ledger.Ask(*ledger.StepToBegin()));
  EXPECT_FALSE(ledger.Ask(*ledger.StepToBegin()));
  // Begins when the caller has given up waiting.
  ledger.Begin(Step(0));
  EXPECT_EQ(ledger.StepToBegin()->step, 0);
  EXPECT_TRUE(ledger.CheckComplete(/*or_untouched=*/false).ok());
  EXPECT_EQ(ledger.TakeBegun().step, 0);
  EXPECT_EQ(ledger.StepToBegin()->step, 1);
  EXPECT_FALSE(ledger.CheckComplete(/*or_untouched=*/false).ok());
}

TEST(StepLedgerTest, AStepOfALifeThatIsOverIsNotAskedFor) {
  StepLedger ledger = TwoLayers();
  ledger.Restart(/*epoch=*/1);
  FinishBoth(ledger, kInitialRound);
  const StepLedger::Call call = *ledger.StepToBegin();
  EXPECT_TRUE(ledger.Ask(call));
  ledger.Restart(/*epoch=*/1);
  ledger.Acknowledge();
  FinishBoth(ledger, 4);
  EXPECT_FALSE(ledger.Ask(call));
  EXPECT_EQ(ledger.StepToBegin()->step, 5);
}

TEST(StepLedgerTest, ACallerLeavesOnceAndDoesNothingAfterwards) {
  StepLedger ledger = Started();
  ASSERT_TRUE(ledger.BeginLeave().ok());
  EXPECT_FALSE(ledger.BeginLeave()->has_value());
  const absl::Status refused = ledger.BeginPush(0, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is leaving"));
  EXPECT_EQ(ledger.StepToBegin().status(), refused);
  // A job that goes back takes the worker with it.
  ledger.Restart(/*epoch=*/1);
  ledger.Acknowledge();
  FinishBoth(ledger, 4);
  EXPECT_TRUE(ledger.StepToBegin().ok());
  EXPECT_EQ((*ledger.BeginLeave())->step, 4);
}

TEST(StepLedgerTest, ARoundThatWasNotPushedIsNotAwaited) {
  const StepLedger ledger = Started();
  const absl::Status status = ledger.CheckAwaited(1, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layer second"), HasSubstr("step 0"),
                    HasSubstr("step -1")));
  EXPECT_TRUE(ledger.CheckAwaited(1, kInitialRound).ok());
}

TEST(StepLedgerTest, AJobThatGoesBackInterruptsEveryCallUntilAcknowledged) {
  StepLedger ledger = Started();
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  EXPECT_EQ(ledger.Restart(/*epoch=*/1), 2);
  EXPECT_TRUE(absl::IsOutOfRange(ledger.BeginPush(1, 0).status()));
  EXPECT_TRUE(absl::IsOutOfRange(ledger.StepToBegin().status()));
  EXPECT_TRUE(absl::IsOutOfRange(ledger.BeginLeave().status()));
  EXPECT_TRUE(absl::IsOutOfRange(ledger.CheckAwaited(0, 0)));
  EXPECT_TRUE(ledger.IsAnswered(0, 0));
  ledger.Acknowledge();
  EXPECT_TRUE(ledger.Interruption().ok());
  EXPECT_FALSE(ledger.HasFirstValues());
  FinishBoth(ledger, 4);
  EXPECT_TRUE(ledger.HasFirstValues());
  EXPECT_EQ(ledger.StepToBegin()->step, 5);
  EXPECT_EQ(ledger.StepToBegin()->life, 2);
}

TEST(StepLedgerTest, TheFirstFailureCounts) {
  StepLedger ledger = Started();
  ledger.Fail(absl::OkStatus());
  EXPECT_FALSE(ledger.is_interrupted());
  ledger.Fail(AbortedError("the cause"));
  ledger.Fail(UnavailableError("a symptom"));
  ledger.End(absl::OkStatus());
  EXPECT_EQ(ledger.failure(), AbortedError("the cause"));
  EXPECT_EQ(ledger.BeginPush(1, 0).status(), ledger.failure());
  EXPECT_TRUE(ledger.is_over());
}

TEST(StepLedgerTest, AWaitEndsWithTheRoundOrWhenTheRoundWillNotCome) {
  StepLedger ledger = Started();
  EXPECT_TRUE(ledger.IsAnswered(0, 0));
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  EXPECT_FALSE(ledger.IsAnswered(0, 0));
  EXPECT_FALSE(ledger.IsIdle());
  ledger.Finish(0, 0, /*skipped=*/false);
  EXPECT_TRUE(ledger.IsAnswered(0, 0));
  EXPECT_TRUE(ledger.IsIdle());
  EXPECT_TRUE(ledger.IsAnswered(7, 0));
}

TEST(StepLedgerTest, TheRoundOfTheLedgerIsThatOfTheSlowestLayer) {
  StepLedger ledger = TwoLayers();
  EXPECT_EQ(ledger.round(), kInitialRound);
  EXPECT_EQ(ledger.Finish(0, kInitialRound, /*skipped=*/false), Done::kFirst);
  EXPECT_EQ(ledger.round(), kInitialRound);
  ledger.Finish(1, kInitialRound, /*skipped=*/false);
  ledger.Finish(1, 0, /*skipped=*/false);
  EXPECT_EQ(ledger.round(), kInitialRound);
  ledger.Finish(0, 0, /*skipped=*/false);
  EXPECT_EQ(ledger.round(), 0);
}

TEST(StepLedgerTest, ARoundThatIsFetchedAgainForAnotherPlanChangesNothing) {
  StepLedger ledger = Started();
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  EXPECT_EQ(ledger.Finish(0, 0, /*skipped=*/true), Done::kRound);
  EXPECT_EQ(ledger.Finish(0, 0, /*skipped=*/false), Done::kAgain);
  EXPECT_TRUE(ledger.Skipped(0));
}

TEST(StepLedgerTest, AStepThatIsDoneAgainMayHaveAnotherOutcome) {
  StepLedger ledger = Started();
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  ledger.Finish(0, 0, /*skipped=*/true);
  ledger.Restart(/*epoch=*/1);
  ledger.Acknowledge();
  FinishBoth(ledger, kInitialRound);
  ledger.Begin(Step(0));
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  ledger.Finish(0, 0, /*skipped=*/false);
  EXPECT_FALSE(ledger.Skipped(0));
}

TEST(StepLedgerTest, AnOverflowOfItsOwnHalvesAWorkersLossScale) {
  StepLedger ledger = Started();
  EXPECT_EQ(ledger.loss_scale(), LossScale::kFirst);
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  ledger.NoteUnfit(0);
  ledger.Finish(0, 0, /*skipped=*/true);
  EXPECT_EQ(ledger.loss_scale(), LossScale::kFirst / 2);
  ledger.Begin(Step(1));
  ASSERT_TRUE(ledger.BeginPush(0, 1).ok());
  ledger.Finish(0, 1, /*skipped=*/true);  // An overflow of another worker.
  EXPECT_EQ(ledger.loss_scale(), LossScale::kFirst / 2);
}

TEST(StepLedgerTest, APushHasTheLossScaleThatItsStepBeganWith) {
  StepLedger ledger = TwoLayers();
  EXPECT_EQ(ledger.Restart(/*epoch=*/1), 1);
  FinishBoth(ledger, kInitialRound);
  StepInfo info = Step(0);
  info.loss_scale = 8;
  ledger.Begin(info);
  const auto pushed = ledger.BeginPush(0, 0);
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(pushed->loss_scale, 8);
  EXPECT_EQ(pushed->life, 1);
}

// Tests of incomplete steps. A step without one of its layers would stop all
// workers.

void ExpectIncomplete(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(StepLedgerTest, AStepWithALayerThatWasNotPushedIsRefusedByItsName) {
  StepLedger ledger = Started();
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  for (const bool or_untouched : {false, true}) {
    const absl::Status status = ledger.CheckComplete(or_untouched);
    ExpectIncomplete(status,
                     "step 0 is not complete: no gradient was pushed of "
                     "second. Push every layer in each step");
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("first")));
  }
  EXPECT_EQ(ledger.pushed_step(), kInitialRound);
  ASSERT_TRUE(ledger.BeginPush(1, 0).ok());
  EXPECT_EQ(ledger.pushed_step(), 0);
  for (const bool or_untouched : {false, true}) {
    EXPECT_TRUE(ledger.CheckComplete(or_untouched).ok());
  }
}

TEST(StepLedgerTest, AStepWithoutAnyPushIsCompleteOnlyForAWorkerThatLeaves) {
  const StepLedger ledger = Started();
  EXPECT_TRUE(ledger.CheckComplete(/*or_untouched=*/true).ok());
  ExpectIncomplete(ledger.CheckComplete(/*or_untouched=*/false),
                   "no gradient was pushed of first, second.");
}

TEST(StepLedgerTest, EachStepIsCheckedByItself) {
  StepLedger ledger = Started();
  for (const int layer : {0, 1}) {
    ASSERT_TRUE(ledger.BeginPush(layer, 0).ok());
    ledger.Finish(layer, 0, /*skipped=*/false);
  }
  EXPECT_TRUE(ledger.CheckComplete(/*or_untouched=*/false).ok());
  ledger.Begin(Step(1));
  ASSERT_TRUE(ledger.BeginPush(1, 1).ok());
  ExpectIncomplete(ledger.CheckComplete(/*or_untouched=*/true),
                   "step 1 is not complete: no gradient was pushed of first.");
}

TEST(StepLedgerTest, BeforeTheFirstStepNothingIsIncomplete) {
  EXPECT_TRUE(TwoLayers().CheckComplete(/*or_untouched=*/false).ok());
}

// The caller's next call returns the reason: the job has gone back, or failed.
TEST(StepLedgerTest, AStepThatWasInterruptedIsNotIncomplete) {
  StepLedger ledger = Started();
  ASSERT_TRUE(ledger.BeginPush(0, 0).ok());
  ASSERT_FALSE(ledger.CheckComplete(/*or_untouched=*/false).ok());
  StepLedger failed = ledger;
  failed.Fail(AbortedError("gone"));
  EXPECT_TRUE(failed.CheckComplete(/*or_untouched=*/false).ok());
  ledger.Restart(/*epoch=*/1);
  EXPECT_TRUE(ledger.CheckComplete(/*or_untouched=*/false).ok());
}

TEST(LossScaleTest, EachOverflowHalvesTheScale) {
  LossScale scale;
  EXPECT_EQ(scale.value(), 65536.0f);
  scale.OnStep(0, /*skipped=*/true, /*own=*/true);
  EXPECT_EQ(scale.value(), 32768.0f);
  scale.OnStep(1, true, true);
  EXPECT_EQ(scale.value(), 16384.0f);
}

TEST(LossScaleTest, AStepCountsOnce) {
  LossScale scale;
  // Each layer reports the step.
  for (int layer = 0; layer < 5; ++layer) scale.OnStep(3, true, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
  scale.OnStep(2, true, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
}

TEST(LossScaleTest, StepsThatAreDoneAgainCountAgain) {
  LossScale scale;
  scale.OnStep(100, true, true);
  scale.OnRestart();
  scale.OnStep(60, true, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst / 4);
}

TEST(LossScaleTest, AnotherWorkersOverflowChangesNothing) {
  LossScale scale;
  for (int64_t step = 0; step < 20; ++step) scale.OnStep(step, true, false);
  EXPECT_EQ(scale.value(), LossScale::kFirst);
}

TEST(LossScaleTest, ManyStepsWithoutOverflowDoubleTheScale) {
  LossScale scale;
  int64_t step = 0;
  for (int i = 0; i < LossScale::kStepsUntilDoubled - 1; ++i) {
    scale.OnStep(step++, false, true);
  }
  EXPECT_EQ(scale.value(), LossScale::kFirst);
  scale.OnStep(step++, false, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst * 2);
  // A skipped step begins the count anew.
  for (int i = 0; i < LossScale::kStepsUntilDoubled - 1; ++i) {
    scale.OnStep(step++, false, true);
  }
  scale.OnStep(step++, true, true);
  scale.OnStep(step++, false, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst);
}

TEST(LossScaleTest, TheScaleStaysInItsRange) {
  LossScale scale;
  int64_t step = 0;
  for (int i = 0; i < 100; ++i) scale.OnStep(step++, true, true);
  EXPECT_EQ(scale.value(), LossScale::kMin);
  for (int i = 0; i < 40 * LossScale::kStepsUntilDoubled; ++i) {
    scale.OnStep(step++, false, true);
  }
  EXPECT_EQ(scale.value(), LossScale::kMax);
}

using testing::ElementsAre;

TEST(GatheringLedgerTest, GatheringsAreNumberedFromEachStepOn) {
  GatheringLedger ledger;
  std::vector<GatheringId> ids;
  for (const int64_t step : {kInitialRound, kInitialRound, int64_t{3}}) {
    ids.push_back(ledger.Begin(step, "a")->id);
    ledger.OnGathered({ids.back(), {"a", "b"}, ""});
    EXPECT_THAT(*ledger.Take(), ElementsAre("a", "b"));
  }
  EXPECT_THAT(ids,
              ElementsAre(GatheringId{kInitialRound, 0},
                          GatheringId{kInitialRound, 1}, GatheringId{3, 0}));
}

TEST(GatheringLedgerTest, CallThatIsMadeAgainGoesOnWithTheFirstValue) {
  GatheringLedger ledger;
  EXPECT_EQ(ledger.Begin(3, "a")->value, "a");
  EXPECT_FALSE(ledger.Begin(3, "b").has_value());
  EXPECT_EQ(ledger.Unanswered()->value, "a");
  ledger.OnGathered({{2, 0}, {"x"}, ""});
  EXPECT_FALSE(ledger.is_answered());
  ledger.OnGathered({{3, 0}, {"a"}, ""});
  EXPECT_FALSE(ledger.Unanswered().has_value());
  EXPECT_TRUE(ledger.is_answered());
}

TEST(GatheringLedgerTest, ErrorOfTheAnswerIsReturnedOnce) {
  GatheringLedger ledger;
  ledger.Begin(3, "a");
  ledger.OnGathered({{3, 0}, {}, "worker w2 has begun step 4"});
  const auto values = ledger.Take();
  EXPECT_EQ(values.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(values.status().message()),
            "worker w2 has begun step 4");
  EXPECT_EQ(ledger.Begin(3, "b")->id, (GatheringId{3, 1}));
}

TEST(GatheringLedgerTest, JobThatGoesBackForgetsTheGathering) {
  GatheringLedger ledger;
  ledger.Begin(3, "a");
  ledger.GoBack(/*epoch=*/7);
  EXPECT_FALSE(ledger.Unanswered().has_value());
  EXPECT_EQ(ledger.Begin(3, "b")->id, (GatheringId{3, 0}));
}

TEST(GatheringLedgerTest, GatheringsAfterGoingBackAreOtherThanTheFirstOnes) {
  GatheringLedger ledger;
  EXPECT_EQ(ledger.Begin(kInitialRound, "a")->id,
            (GatheringId{kInitialRound, 0, 0}));
  ledger.GoBack(/*epoch=*/7);
  const GatheringId back = ledger.Begin(kInitialRound, "b")->id;
  EXPECT_EQ(back, (GatheringId{kInitialRound, 0, 7}));
  ledger.OnGathered({back, {"b"}, ""});
  ASSERT_TRUE(ledger.Take().ok());
  EXPECT_EQ(ledger.Begin(3, "c")->id, (GatheringId{3, 0, 0}));
}

}  // namespace

}  // namespace nereus
