#include "worker/measure/step_phases.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

TEST(StepPhasesTest, SplitsAStepByItsPushesAndWaits) {
  StepPhases phases;
  phases.OnBegin(At(0), At(5));  // The first step counts from its begin on.
  phases.OnPush(At(15));
  phases.OnPush(At(35));
  phases.OnWait(At(38), At(45));
  phases.OnBegin(At(46), At(50));
  EXPECT_EQ(phases.sums().steps, 2);
  const PhaseTimes& times = phases.sums().times;
  EXPECT_EQ(times.forward, absl::Milliseconds(10));
  EXPECT_EQ(times.backward, absl::Milliseconds(20));
  EXPECT_EQ(times.other, absl::Milliseconds(3 + 1));
  EXPECT_EQ(times.waiting, absl::Milliseconds(7 + 4));
  EXPECT_EQ(times.total(), absl::Milliseconds(45));
}

TEST(StepPhasesTest, AWaitBeforeTheFirstPushIsNoForward) {
  StepPhases phases;
  phases.OnBegin(At(0), At(0));
  phases.OnWait(At(10), At(30));
  phases.OnPush(At(35));
  EXPECT_EQ(phases.sums().times.forward, absl::Milliseconds(15));
  EXPECT_EQ(phases.sums().times.waiting, absl::Milliseconds(20));
}

TEST(StepPhasesTest, TimeBeforeTheFirstStepDoesNotCount) {
  StepPhases phases;
  phases.OnWait(At(0), At(100));
  phases.OnPush(At(150));
  EXPECT_EQ(phases.sums().times.total(), absl::ZeroDuration());
}

// Two threads may wait for two layers at the same time.
TEST(StepPhasesTest, WaitsThatOverlapCountOnce) {
  StepPhases phases;
  phases.OnBegin(At(0), At(0));
  phases.OnPush(At(10));
  phases.OnWait(At(12), At(30));
  phases.OnWait(At(11), At(20));
  EXPECT_EQ(phases.sums().times.waiting, absl::Milliseconds(18));
  EXPECT_EQ(phases.sums().times.total(), absl::Milliseconds(30));
}

}  // namespace
}  // namespace nereus
