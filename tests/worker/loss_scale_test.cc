#include "worker/machine/loss_scale.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

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

}  // namespace
}  // namespace nereus
