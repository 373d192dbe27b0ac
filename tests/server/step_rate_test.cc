#include "server/coordinator/step_rate.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(StepRateTest, RateIsOfTheLastTenSeconds) {
  StepRate rate;
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Note(kStart, 0);
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Note(kStart + absl::Seconds(10), 50);
  EXPECT_EQ(rate.PerSecond(), 5);
  rate.Note(kStart + absl::Seconds(20), 60);
  EXPECT_EQ(rate.PerSecond(), 1);
}

TEST(StepRateTest, JobThatGoesBackToACheckpointIsMeasuredFromScratch) {
  StepRate rate;
  rate.Note(kStart, 0);
  rate.Note(kStart + absl::Seconds(1), 100);
  rate.Note(kStart + absl::Seconds(2), 40);
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Note(kStart + absl::Seconds(3), 42);
  EXPECT_EQ(rate.PerSecond(), 2);
}

// No time has passed, so no rate is known. Division by zero seconds would give
// infinity.
TEST(StepRateTest, TwoNotesAtOnceHaveNoRate) {
  StepRate rate;
  rate.Note(kStart, 0);
  rate.Note(kStart, 3);
  EXPECT_EQ(rate.PerSecond(), 0);
}

}  // namespace
}  // namespace nereus
