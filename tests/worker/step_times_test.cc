#include "worker/measure/step_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {

namespace {

using testing::ElementsAre;

constexpr int kLayers = 3;

// Returns layers of 1, 2 and 3 million operations.
std::vector<LayerSpec> SomeLayers() {
  std::vector<LayerSpec> layers;
  for (const int64_t m : {100, 200, 300}) {
    layers.push_back({absl::StrCat("fc", m), LayerKind::kFullyConnected, m, 100,
                      m * 100, 100, true});
  }
  return layers;
}

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

std::vector<double> Seconds(const std::vector<LayerTime>& times,
                            absl::Duration LayerTime::*which) {
  std::vector<double> seconds;
  for (const LayerTime& time : times) {
    seconds.push_back(absl::ToDoubleSeconds(time.*which));
  }
  return seconds;
}

// Simulates steps that begin every 100 s. The three layers compute forward for
// 1, 2 and 3 s and backward for 2, 4 and 6 s.
class Steps {
 public:
  // Does `count` steps. With `waits` the caller waits for each layer before its
  // forward.
  void Do(int count, bool waits, absl::Duration backward = absl::Seconds(2)) {
    for (int i = 0; i < count; ++i) {
      absl::Time now = At(100.0 * steps_++);
      times_.OnBegin(now);
      for (int layer = 0; layer < kLayers; ++layer) {
        if (waits) times_.OnWait(layer, now, now + absl::Seconds(5));
        if (waits) now += absl::Seconds(5);
        now += absl::Seconds(layer + 1);
      }
      for (int layer = kLayers - 1; layer >= 0; --layer) {
        now += backward * (layer + 1);
        times_.OnPush(layer, now);
      }
      // Waits after the last push are not part of any forward.
      for (int layer = 0; layer < kLayers; ++layer) {
        times_.OnWait(layer, now, now + absl::Seconds(7));
      }
    }
    times_.OnBegin(At(100.0 * steps_));
  }

  const StepTimes& times() const { return times_; }

 private:
  StepTimes times_{SomeLayers()};
  int steps_ = 0;
};

TEST(StepTimesTest, ForwardIsMeasuredByLayerIfTheCallerWaitsLayerByLayer) {
  Steps steps;
  steps.Do(9, /*waits=*/true);
  EXPECT_FALSE(steps.times().enough());
  steps.Do(1, /*waits=*/true);
  ASSERT_TRUE(steps.times().enough());
  EXPECT_TRUE(steps.times().waits_in_forward());
  // Forward and backward of the last layer take 9 s together. They are split in
  // the proportion of the other layers.
  EXPECT_THAT(Seconds(steps.times().times(), &LayerTime::forward),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(Seconds(steps.times().times(), &LayerTime::backward),
              ElementsAre(2, 4, 6));
  EXPECT_EQ(steps.times().step_time(), absl::Seconds(100));
}

TEST(StepTimesTest,
     FirstBackwardIsEstimatedByOperationsIfTheCallerWaitsForAll) {
  Steps steps;
  steps.Do(10, /*waits=*/false);
  ASSERT_TRUE(steps.times().enough());
  EXPECT_FALSE(steps.times().waits_in_forward());
  // The first push comes after 12 s. Backward has 6 s of them, because the
  // other layers take 2 + 4 s for as many operations.
  EXPECT_THAT(Seconds(steps.times().times(), &LayerTime::forward),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(Seconds(steps.times().times(), &LayerTime::backward),
              ElementsAre(2, 4, 6));
}

TEST(StepTimesTest, ReadingExamplesCountsAsForward) {
  StepTimes times(SomeLayers());
  for (int step = 0; step < 20; ++step) {
    times.OnBegin(At(100.0 * step));
    times.OnPush(2, At(100.0 * step + 62));
    times.OnPush(1, At(100.0 * step + 66));
    times.OnPush(0, At(100.0 * step + 68));
  }
  ASSERT_TRUE(times.enough());
  EXPECT_THAT(Seconds(times.times(), &LayerTime::backward),
              ElementsAre(2, 4, 6));
  EXPECT_EQ(TotalTime(times.times()), absl::Seconds(68));
}

TEST(StepTimesTest, OneThreadMayWaitWhileAnotherComputes) {
  StepTimes times(SomeLayers());
  for (int step = 0; step < 20; ++step) {
    const double now = 100.0 * step;
    times.OnBegin(At(now));
    times.OnPush(2, At(now + 10));
    times.OnPush(1, At(now + 15));
    times.OnWait(2, At(now + 10), At(now + 18));
    times.OnPush(0, At(now + 20));
  }
  ASSERT_TRUE(times.enough());
  EXPECT_THAT(Seconds(times.times(), &LayerTime::backward),
              ElementsAre(5, 5, 10));
}

TEST(StepTimesTest, ResultIsTheMedianOfTheLastSteps) {
  Steps steps;
  steps.Do(30, /*waits=*/true);
  steps.Do(7, /*waits=*/true, absl::Seconds(1));
  EXPECT_EQ(steps.times().times()[1].backward, absl::Seconds(4));
  steps.Do(2, /*waits=*/true, absl::Seconds(1));
  EXPECT_EQ(steps.times().times()[1].backward, absl::Seconds(2));
}

TEST(StepTimesTest, StepWithoutAllPushesDoesNotCount) {
  StepTimes times(SomeLayers());
  for (int step = 0; step < 50; ++step) {
    times.OnBegin(At(step));
    times.OnPush(2, At(step + 0.5));
  }
  EXPECT_FALSE(times.enough());
}

TEST(StepTimesTest, ModelWithoutComputingTakesNoTime) {
  StepTimes times(SomeLayers());
  for (int step = 0; step < 50; ++step) {
    times.OnBegin(At(step));
    for (const int layer : {2, 1, 0}) times.OnPush(layer, At(step));
  }
  ASSERT_TRUE(times.enough());
  EXPECT_EQ(TotalTime(times.times()), absl::ZeroDuration());
}

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

// While another job has the device, the step counts neither as computing nor as
// longer.
TEST(StepTimesTest, AWaitForATurnIsNoPartOfAStep) {
  StepTimes with(SomeLayers());
  StepTimes without(SomeLayers());
  absl::Duration later;
  for (int step = 0; step < 12; ++step) {
    const absl::Time begin = At(100.0 * step);
    with.OnBegin(begin + later);
    without.OnBegin(begin);
    const absl::Duration turn = absl::Seconds(step % 3);
    with.OnTurn(begin + later, begin + later + turn);
    later += turn;
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      const absl::Time now = begin + absl::Seconds(10 * (kLayers - layer));
      with.OnPush(layer, now + later);
      without.OnPush(layer, now);
    }
  }
  ASSERT_TRUE(with.enough());
  EXPECT_EQ(with.step_time(), without.step_time());
  for (const auto which : {&LayerTime::forward, &LayerTime::backward}) {
    EXPECT_EQ(Seconds(with.times(), which), Seconds(without.times(), which));
  }
}

TEST(StepPhasesTest, AWaitForATurnIsAPhaseOfItsOwn) {
  StepPhases phases;
  phases.OnBegin(0, At(0), At(1));
  phases.OnTurn(At(1), At(4));
  phases.OnPush(1, At(6));
  phases.OnTurn(At(7), At(9));  // Another job has passed the worker.
  phases.OnPush(0, At(10));
  phases.OnBegin(1, At(10), At(12));
  EXPECT_EQ(phases.sums().times.turn, absl::Milliseconds(5));
  EXPECT_EQ(phases.sums().times.forward, absl::Milliseconds(2));
  EXPECT_EQ(phases.sums().times.backward, absl::Milliseconds(2));
  EXPECT_EQ(phases.sums().times.waiting, absl::Milliseconds(2));
}

}  // namespace

}  // namespace nereus
