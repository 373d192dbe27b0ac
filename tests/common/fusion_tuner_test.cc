#include "common/plan/fusion_tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/random.h"

namespace nereus {
namespace {

using Curve = std::function<double(double x)>;  // x is log2 of the threshold.

double At(const Curve& curve, int64_t bytes) {
  return curve(std::log2(static_cast<double>(bytes)));
}

double LeastOf(const Curve& curve) {
  double least = curve(10);
  for (double x = 10; x <= 26; x += 0.125) least = std::min(least, curve(x));
  return least;
}

// Runs the tuner to its end. Each measurement has a relative error of at most
// `noise`.
FusionTuner Tune(const Curve& curve, double noise, uint64_t seed,
                 int64_t first = FusionTuner::kBytesFirst) {
  Random random(seed);
  FusionTuner tuner(first);
  while (!tuner.done()) {
    EXPECT_GE(tuner.next(), FusionTuner::kBytesMin);
    EXPECT_LE(tuner.next(), FusionTuner::kBytesMax);
    const double error = 1 + noise * (2 * random.Uniform() - 1);
    tuner.Observe(At(curve, tuner.next()) * error);
  }
  EXPECT_LE(tuner.trials(), FusionTuner::kTrialsMax);
  return tuner;
}

// Returns the shape of real step times: small thresholds cost many messages,
// large thresholds delay the messages.
Curve Iteration(double per_message, double overlap) {
  return [=](double x) {
    const double bytes = std::exp2(x);
    return 0.05 + per_message * 4e6 / bytes + overlap * bytes / 4e6;
  };
}

TEST(FusionTunerTest, ThresholdIsWithinFivePercentOfTheBest) {
  for (const double per_message : {1e-6, 1e-5, 1e-4, 1e-3}) {
    for (const double overlap : {1e-3, 1e-2, 1e-1}) {
      const Curve curve = Iteration(per_message, overlap);
      const FusionTuner tuner = Tune(curve, 0, 1);
      EXPECT_LE(At(curve, tuner.best()), 1.05 * LeastOf(curve))
          << per_message << ", " << overlap << ": " << tuner.best() << " after "
          << tuner.trials() << " trials";
    }
  }
}

TEST(FusionTunerTest, TunerToleratesNoise) {
  const Curve curve = Iteration(1e-4, 1e-2);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const FusionTuner tuner = Tune(curve, 0.03, seed);
    EXPECT_LE(At(curve, tuner.best()), 1.08 * LeastOf(curve))
        << "seed " << seed << ": " << tuner.best();
  }
}

TEST(FusionTunerTest, TunerFindsOptimaAtTheBounds) {
  const Curve rising = [](double x) { return 0.01 * x; };
  const Curve falling = [](double x) { return 0.01 * (40 - x); };
  EXPECT_LE(Tune(rising, 0, 1).best(), 2 * FusionTuner::kBytesMin);
  EXPECT_GE(Tune(falling, 0, 1).best(), FusionTuner::kBytesMax / 2);
}

TEST(FusionTunerTest, FlatCurveEndsTheSearchSoon) {
  const FusionTuner tuner = Tune([](double) { return 0.2; }, 0.001, 1);
  EXPECT_EQ(tuner.trials(), 3);
}

TEST(FusionTunerTest, BestBeforeTheFirstTrialIsTheGuess) {
  const FusionTuner tuner;
  EXPECT_EQ(tuner.best(), FusionTuner::kBytesFirst);
  EXPECT_EQ(tuner.next(), FusionTuner::kBytesFirst);
  EXPECT_FALSE(tuner.done());
}

// The first trial is the given threshold, clamped to the bounds.
TEST(FusionTunerTest, FirstTrialIsTheGivenThreshold) {
  for (const int64_t first : {int64_t{0}, int64_t{1} << 10, int64_t{5000},
                              int64_t{1} << 24, int64_t{1} << 30}) {
    const FusionTuner fresh(first);
    EXPECT_EQ(fresh.next(), std::clamp(first, FusionTuner::kBytesMin,
                                       FusionTuner::kBytesMax));
    EXPECT_EQ(fresh.best(), fresh.next());
    const Curve curve = Iteration(1e-4, 1e-2);
    const FusionTuner tuner = Tune(curve, 0, 1, first);
    EXPECT_LE(At(curve, tuner.best()), 1.05 * LeastOf(curve)) << first;
  }
}

// A good initial threshold saves trials.
TEST(FusionTunerTest, GoodStartTakesNoMoreTrials) {
  const Curve curve = Iteration(1e-4, 1e-2);
  int64_t best = FusionTuner::kBytesMin;
  for (int64_t bytes = best; bytes <= FusionTuner::kBytesMax; bytes *= 2) {
    if (At(curve, bytes) < At(curve, best)) best = bytes;
  }
  EXPECT_LE(Tune(curve, 0, 1, best).trials(),
            Tune(curve, 0, 1, FusionTuner::kBytesMin).trials());
}

TEST(FusionTunerTest, EqualMeasurementsGiveEqualThresholds) {
  const Curve curve = Iteration(1e-4, 1e-2);
  EXPECT_EQ(Tune(curve, 0.05, 7).best(), Tune(curve, 0.05, 7).best());
}

}  // namespace
}  // namespace nereus
