#include "worker/measure/step_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace nereus {
namespace {

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

TEST(StepPhasesTest, SplitsAStepByItsPushesAndWaits) {
  StepPhases phases;
  phases.OnBegin(0, At(0), At(5));  // The first step counts from its begin on.
  phases.OnPush(1, At(15));
  phases.OnPush(1, At(35));
  phases.OnWait(2, At(38), At(45));
  phases.OnBegin(1, At(46), At(50));
  EXPECT_EQ(phases.sums().steps, 2);
  EXPECT_EQ(phases.steps().count(), 1) << "the second step is not over";
  EXPECT_EQ(phases.steps().sum(), absl::Milliseconds(45));
  const PhaseTimes& times = phases.sums().times;
  EXPECT_EQ(times.forward, absl::Milliseconds(10));
  EXPECT_EQ(times.backward, absl::Milliseconds(20));
  EXPECT_EQ(times.other, absl::Milliseconds(3 + 1));
  EXPECT_EQ(times.waiting, absl::Milliseconds(7 + 4));
  EXPECT_EQ(times.total(), absl::Milliseconds(45));
}

TEST(StepPhasesTest, AWaitBeforeTheFirstPushIsNoForward) {
  StepPhases phases;
  phases.OnBegin(0, At(0), At(0));
  phases.OnWait(2, At(10), At(30));
  phases.OnPush(1, At(35));
  EXPECT_EQ(phases.sums().times.forward, absl::Milliseconds(15));
  EXPECT_EQ(phases.sums().times.waiting, absl::Milliseconds(20));
}

TEST(StepPhasesTest, TimeBeforeTheFirstStepDoesNotCount) {
  StepPhases phases;
  phases.OnWait(2, At(0), At(100));
  phases.OnPush(1, At(150));
  EXPECT_EQ(phases.sums().times.total(), absl::ZeroDuration());
}

// Two threads may wait for two layers at the same time.
TEST(StepPhasesTest, WaitsThatOverlapCountOnce) {
  StepPhases phases;
  phases.OnBegin(0, At(0), At(0));
  phases.OnPush(1, At(10));
  phases.OnWait(2, At(12), At(30));
  phases.OnWait(2, At(11), At(20));
  EXPECT_EQ(phases.sums().times.waiting, absl::Milliseconds(18));
  EXPECT_EQ(phases.sums().times.total(), absl::Milliseconds(30));
}

TEST(StepPhasesTest, TracedStepsGiveSpans) {
  SpanRecorder recorder;
  recorder.Begin({7, 5, 5, 100});
  StepPhases phases;
  phases.set_recorder(&recorder);
  phases.OnBegin(4, At(0), At(0));
  phases.OnPush(1, At(10));
  phases.OnBegin(5, At(12), At(13));  // 12 - 10 belongs to step 4.
  phases.OnPush(1, At(20));
  phases.OnPush(0, At(25));
  phases.OnWait(0, At(26), At(30));
  phases.OnBegin(6, At(31), At(32));
  phases.OnPush(1, At(40));
  std::vector<std::tuple<SpanKind, int, int64_t, absl::Time, absl::Time>> found;
  for (const Span& span : recorder.Take().spans) {
    found.emplace_back(span.kind, span.layer, span.round, span.begin, span.end);
  }
  EXPECT_THAT(found, testing::ElementsAre(
                         std::tuple(SpanKind::kWait, -1, 5, At(12), At(13)),
                         std::tuple(SpanKind::kForward, -1, 5, At(13), At(20)),
                         std::tuple(SpanKind::kBackward, 0, 5, At(20), At(25)),
                         std::tuple(SpanKind::kOther, -1, 5, At(25), At(26)),
                         std::tuple(SpanKind::kWait, 0, 5, At(26), At(30)),
                         std::tuple(SpanKind::kOther, -1, 5, At(30), At(31))));
}

}  // namespace
}  // namespace nereus
