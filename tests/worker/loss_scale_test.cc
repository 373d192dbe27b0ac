#include "worker/loss_scale.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

TEST(LossScaleTest, EachOverflowHalvesIt) {
  LossScale scale;
  EXPECT_EQ(scale.value(), 65536.0f);
  scale.OnStep(0, /*skipped=*/true);
  EXPECT_EQ(scale.value(), 32768.0f);
  scale.OnStep(1, true);
  EXPECT_EQ(scale.value(), 16384.0f);
}

TEST(LossScaleTest, AStepCountsOnce) {
  LossScale scale;
  // Each layer tells of it.
  for (int layer = 0; layer < 5; ++layer) scale.OnStep(3, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
  // The job has gone back.
  scale.OnStep(2, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
}

TEST(LossScaleTest, ManyStepsInARowDoubleIt) {
  LossScale scale;
  int64_t step = 0;
  for (int i = 0; i < LossScale::kStepsUntilDoubled - 1; ++i) {
    scale.OnStep(step++, false);
  }
  EXPECT_EQ(scale.value(), LossScale::kFirst);
  scale.OnStep(step++, false);
  EXPECT_EQ(scale.value(), LossScale::kFirst * 2);
  // A skipped one begins the count anew.
  for (int i = 0; i < LossScale::kStepsUntilDoubled - 1; ++i) {
    scale.OnStep(step++, false);
  }
  scale.OnStep(step++, true);
  scale.OnStep(step++, false);
  EXPECT_EQ(scale.value(), LossScale::kFirst);
}

TEST(LossScaleTest, ItStaysInItsRange) {
  LossScale scale;
  int64_t step = 0;
  for (int i = 0; i < 100; ++i) scale.OnStep(step++, true);
  EXPECT_EQ(scale.value(), LossScale::kMin);
  for (int i = 0; i < 40 * LossScale::kStepsUntilDoubled; ++i) {
    scale.OnStep(step++, false);
  }
  EXPECT_EQ(scale.value(), LossScale::kMax);
}

}  // namespace
}  // namespace nereus
