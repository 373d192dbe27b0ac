// Update rules of the optimizers, compared with calculations by hand and with
// the paper in double. Bounds are derived from the number of float32 roundings.

#include "common/compute/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

constexpr double kUnit = 0x1.0p-24;  // Relative error of one float32 rounding.

OptimizerOptions Sgd(float learning_rate, float momentum, float weight_decay) {
  OptimizerOptions options;
  options.rule = UpdateRule::kSgd;
  options.learning_rate = learning_rate;
  options.momentum = momentum;
  options.weight_decay = weight_decay;
  return options;
}

OptimizerOptions Adam() {
  OptimizerOptions options;
  options.rule = UpdateRule::kAdam;
  options.learning_rate = 0.01f;
  return options;
}

std::vector<float> RandomFloats(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(random.Uniform() * 2 - 1);
  }
  return values;
}

// All numbers are exact in float32.
//
//   t  g = 0.5 grad + 0.25 p        v = 0.5 v + g  p = p - 0.5 v
//   0  0.5 *  4 + 0.25 *  1         2.25           -0.125
//   1  0.5 *  2 - 0.25 * 0.125      2.09375        -1.171875
//   2  0.5 * -2 - 0.25 * 1.171875   -0.24609375    -1.048828125
TEST(SgdTest, StepsMatchAHandCount) {
  const OptimizerOptions options = Sgd(0.5f, 0.5f, 0.25f);
  const float gradients[] = {4.0f, 2.0f, -2.0f};
  const float velocities[] = {2.25f, 2.09375f, -0.24609375f};
  const float parameters[] = {-0.125f, -1.171875f, -1.048828125f};
  float parameter = 1.0f;
  float velocity = 0.0f;
  for (int step = 0; step < 3; ++step) {
    ApplyOptimizer(options, step, 1, 0.5f, &gradients[step], &parameter,
                   &velocity, &parameter);
    EXPECT_EQ(velocity, velocities[step]) << "step " << step;
    EXPECT_EQ(parameter, parameters[step]) << "step " << step;
  }
}

TEST(SgdTest, WithoutMomentumTheVelocityIsTheGradient) {
  const OptimizerOptions options = Sgd(1.0f, 0.0f, 0.0f);
  const float gradient = 3.0f;
  float parameter = 1.0f;
  float velocity = 100.0f;
  ApplyOptimizer(options, 7, 1, 1.0f, &gradient, &parameter, &velocity,
                 &parameter);
  EXPECT_EQ(velocity, 3.0f);
  EXPECT_EQ(parameter, -2.0f);
}

// All numbers are exact in float32.
//
//   t  g = grad + 0.25 p        v = 0.5 v + g  p = p - 0.5 (g + 0.5 v)
//   0  4 + 0.25 * 1  = 4.25     4.25           1 - 0.5 * 6.375 = -2.1875
//   1  2 - 0.546875 = 1.453125  3.578125       -2.1875 - 0.5 * 3.2421875
TEST(NesterovTest, StepsMatchAHandCount) {
  OptimizerOptions options = Sgd(0.5f, 0.5f, 0.25f);
  options.rule = UpdateRule::kNesterov;
  const float gradients[] = {4.0f, 2.0f};
  const float velocities[] = {4.25f, 3.578125f};
  const float parameters[] = {-2.1875f, -3.80859375f};
  float parameter = 1.0f;
  float velocity = 0.0f;
  for (int step = 0; step < 2; ++step) {
    ApplyOptimizer(options, step, 1, 1.0f, &gradients[step], &parameter,
                   &velocity, &parameter);
    EXPECT_EQ(velocity, velocities[step]) << "step " << step;
    EXPECT_EQ(parameter, parameters[step]) << "step " << step;
  }
}

// Without epsilon, the first step of Adam is the learning rate times the sign
// of the gradient: m / (1 - beta1) = g, v / (1 - beta2) = g^2. Each moment has
// two roundings and each correction one more; the root halves those of v. With
// root, sum, product, quotient and difference, there are fewer than 12.
TEST(AdamTest, FirstStepHasTheSizeOfTheLearningRate) {
  for (const float gradient : {0.0f, 1e-3f, -0.5f, 2.0f, -1000.0f}) {
    const OptimizerOptions options = Adam();
    const float zero = 0.0f;
    float state[2] = {0.0f, 0.0f};
    float updated = 0.0f;
    ApplyOptimizer(options, 0, 1, 1.0f, &gradient, &zero, state, &updated);
    const double g = gradient;
    const double expected =
        -options.learning_rate * g / (std::abs(g) + options.epsilon);
    EXPECT_NEAR(updated, expected, 12 * kUnit * std::abs(expected)) << g;
  }
}

// Algorithm 1 of the paper in double, line by line, with a bound on the error
// of float32. With u = 2^-24 and |g| <= G, after t steps:
//   m: each step rounds two products and one sum, all below G:
//      error <= 3 u G / (1 - beta1).
//   v: terms are positive, so relative errors do not grow: (3 t) u.
//   step: both corrections (the root halves the error of v), root, epsilon,
//      product and quotient: (3 t / 2 + 7) u of the step, and the error of m
//      times the learning rate, divided by the root.
//   parameter: the errors of all steps, and one more rounding in each step.
// Products of errors are covered by 1 %.
TEST(AdamTest, StepsMatchThePaper) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const OptimizerOptions options = Adam();
    const double beta1 = options.beta1;
    const double beta2 = options.beta2;
    float parameter = static_cast<float>(random.Uniform());
    float state[2] = {0.0f, 0.0f};
    double theta = parameter;
    double m = 0;
    double v = 0;
    double bound = 0;
    for (int t = 1; t <= 200; ++t) {
      const auto gradient = static_cast<float>(random.Uniform() * 2 - 1);
      ApplyOptimizer(options, t - 1, 1, 1.0f, &gradient, &parameter, state,
                     &parameter);
      m = beta1 * m + (1 - beta1) * gradient;
      v = beta2 * v + (1 - beta2) * gradient * gradient;
      const double rate = options.learning_rate / (1 - std::pow(beta1, t));
      const double root = std::sqrt(v / (1 - std::pow(beta2, t)));
      const double step = rate * m / (root + options.epsilon);
      theta -= step;
      bound += 1.01 * ((1.5 * t + 7) * kUnit * std::abs(step) +
                       rate * 3 * kUnit / (1 - beta1) / root +
                       kUnit * std::abs(theta));
      ASSERT_NEAR(parameter, theta, bound) << "step " << t;
    }
    // A useless bound would allow every result.
    EXPECT_LT(bound, 1e-3);
  }
}

// The moments are those of adam without weight decay, and each step first
// multiplies the parameter by 1 - 0.01 * 0.5. Fewer than four results of a step
// are rounded, all below 1.
TEST(AdamWTest, DecayIsNoPartOfTheMoments) {
  OptimizerOptions adam = Adam();
  OptimizerOptions adamw = adam;
  adamw.rule = UpdateRule::kAdamW;
  adamw.weight_decay = 0.5f;
  float apart = 1.0f;
  float decayed = 1.0f;
  float states[2][2] = {};
  double expected = 1.0;
  for (int step = 0; step < 20; ++step) {
    const float gradient = step % 3 == 0 ? -1.0f : 0.75f;
    const double before = apart;
    ApplyOptimizer(adam, step, 1, 1.0f, &gradient, &apart, states[0], &apart);
    ApplyOptimizer(adamw, step, 1, 1.0f, &gradient, &decayed, states[1],
                   &decayed);
    expected = expected * (1 - 0.01 * 0.5) + (apart - before);
    EXPECT_EQ(states[0][0], states[1][0]);
    EXPECT_EQ(states[0][1], states[1][1]);
    EXPECT_NEAR(decayed, expected, (step + 1) * 4 * kUnit);
  }
  EXPECT_LT(decayed, apart);
}

TEST(RateScheduleTest, FactorsFollowTheCurves) {
  const auto schedule =
      RateSchedule::Parse("10:0.5,20:1,40:0.25:hold,60:0.75:cosine");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const auto at = [&](int64_t step) { return schedule->FactorAt(step); };
  EXPECT_EQ(at(0), 0.5f);
  EXPECT_EQ(at(10), 0.5f);
  EXPECT_EQ(at(15), 0.75f);
  EXPECT_EQ(at(20), 1.0f);
  EXPECT_EQ(at(39), 1.0f);
  EXPECT_EQ(at(40), 0.25f);
  EXPECT_EQ(at(50), 0.5f);
  for (int step = 40; step <= 60; ++step) {
    const double part = (step - 40) / 20.0;
    EXPECT_NEAR(at(step), 0.5 - 0.25 * std::cos(M_PI * part), kUnit) << step;
  }
  EXPECT_EQ(at(61), 0.75f);
  EXPECT_EQ(at(int64_t{1} << 60), 0.75f);
  EXPECT_EQ(RateSchedule().FactorAt(7), 1.0f);
  OptimizerOptions options = Sgd(0.5f, 0.9f, 0.0f);
  const OptimizerOptions then = OptimizerAt(options, *schedule, 15);
  options.learning_rate = 0.375f;
  EXPECT_EQ(then, options);
}

TEST(RateScheduleTest, TextKeepsEachBit) {
  RateSchedule schedule;
  EXPECT_EQ(schedule.ToString(), "none");
  EXPECT_EQ(*RateSchedule::Parse("none"), schedule);
  schedule.points = {{.step = 0, .factor = 0.1f / 3},
                     {.step = 7, .factor = 1e-20f, .curve = RateCurve::kHold},
                     {.step = 9, .factor = 3, .curve = RateCurve::kCosine}};
  EXPECT_EQ(*RateSchedule::Parse(schedule.ToString()), schedule);
  EXPECT_THAT(schedule.ToString(), HasSubstr(":hold,9:3:cosine"));
}

TEST(RateScheduleTest, NonsenseIsRefused) {
  const auto refusal = [](absl::string_view text) {
    return std::string(RateSchedule::Parse(text).status().message());
  };
  EXPECT_EQ(refusal(""), "\"\" is not STEP:FACTOR[:CURVE]");
  EXPECT_EQ(refusal("0:1,"), "\"\" is not STEP:FACTOR[:CURVE]");
  EXPECT_EQ(refusal("5"), "\"5\" is not STEP:FACTOR[:CURVE]");
  EXPECT_EQ(refusal("0:1:hold:1"), "\"0:1:hold:1\" is not STEP:FACTOR[:CURVE]");
  EXPECT_EQ(refusal("1e3:1"), "\"1e3:1\" is not STEP:FACTOR[:CURVE]");
  EXPECT_THAT(refusal("-1:1"), HasSubstr("step -1 is not from 0 to"));
  EXPECT_EQ(refusal("0:-1"), "factor -1 is not from 0 to 10");
  EXPECT_EQ(refusal("0:nan"), "factor nan is not from 0 to 10");
  EXPECT_EQ(refusal("0:inf"), "factor inf is not from 0 to 10");
  EXPECT_EQ(refusal("5:1,5:1"), "step 5 comes after step 5");
  EXPECT_THAT(refusal("0:1:cosin"), HasSubstr("cosin"));
  std::string many = "0:1";
  for (int step = 1; step <= 64; ++step)
    many += "," + std::to_string(step) + ":1";
  EXPECT_EQ(refusal(many), "there are more than 64 points");
}

// The table of a job's options takes a learning rate up to 1e30, and a schedule
// multiplies it by 10 at most.
TEST(AdamTest, LargestLearningRateOfAJobHasAFiniteStep) {
  OptimizerOptions options;
  options.rule = UpdateRule::kAdam;
  options.learning_rate = 1e30f;
  options.beta1 = options.beta2 = std::nextafter(1.0f, 0.0f);
  ASSERT_TRUE(options.Validate().ok());
  for (const char* text : {"none", "0:10", "0:1000"}) {
    const auto schedule = RateSchedule::Parse(text);
    if (!schedule.ok()) continue;  // A factor that is refused does no harm.
    const AdamStep step =
        AdamStepOf(OptimizerAt(options, *schedule, 0), /*step=*/0,
                   /*gradient_scale=*/1.0f);
    EXPECT_TRUE(std::isfinite(step.step_size)) << text;
  }
}

class OptimizerTest : public testing::TestWithParam<UpdateRule> {
 protected:
  OptimizerOptions Options() const {
    OptimizerOptions options = Adam();
    options.rule = GetParam();
    options.weight_decay = 0.01f;
    return options;
  }
  int64_t StateOf(int64_t length) const {
    return length * OptimizerStateCount(GetParam());
  }
};

TEST_P(OptimizerTest, WeightDecayAndScaleMakeTheGradient) {
  Random random(11);
  const std::vector<float> parameters = RandomFloats(random, 100);
  const std::vector<float> gradient = RandomFloats(random, 100);
  OptimizerOptions options = Options();
  // The weight decay of adamw is no part of the gradient (AdamWTest).
  if (options.rule == UpdateRule::kAdamW) options.weight_decay = 0.0f;
  std::vector<float> made(100);
  for (size_t i = 0; i < made.size(); ++i) {
    made[i] = 0.25f * gradient[i] + options.weight_decay * parameters[i];
  }
  OptimizerOptions plain = options;
  plain.weight_decay = 0.0f;
  std::vector<float> state(StateOf(100), 0.0f);
  std::vector<float> plain_state = state;
  std::vector<float> updated(100);
  std::vector<float> plain_updated(100);
  ApplyOptimizer(options, 0, 100, 0.25f, gradient.data(), parameters.data(),
                 state.data(), updated.data());
  ApplyOptimizer(plain, 0, 100, 1.0f, made.data(), parameters.data(),
                 plain_state.data(), plain_updated.data());
  EXPECT_EQ(updated, plain_updated);
  EXPECT_EQ(state, plain_state);
}

TEST_P(OptimizerTest, InPlaceGivesTheSameBits) {
  for (const int64_t length : {0, 1, 3, 8, 17, 1000}) {
    Random random(length + 1);
    std::vector<float> in_place = RandomFloats(random, length);
    std::vector<float> parameters = in_place;
    std::vector<float> state(StateOf(length), 0.0f);
    std::vector<float> other_state = state;
    for (int step = 0; step < 5; ++step) {
      const std::vector<float> gradient = RandomFloats(random, length);
      ApplyOptimizer(Options(), step, length, 0.25f, gradient.data(),
                     in_place.data(), state.data(), in_place.data());
      const std::vector<float> before = parameters;
      std::vector<float> updated(length);
      ApplyOptimizer(Options(), step, length, 0.25f, gradient.data(),
                     parameters.data(), other_state.data(), updated.data());
      EXPECT_EQ(parameters, before);  // The parameters are only read.
      parameters = updated;
      ASSERT_EQ(in_place, updated) << "step " << step;
      ASSERT_EQ(state, other_state) << "step " << step;
    }
  }
}

// Part of a layer with its own state, like a chunk on a shard.
struct Part {
  int64_t begin;
  int64_t length;
  std::vector<float> state;
};

TEST_P(OptimizerTest, CuttingIntoPartsGivesTheSameBits) {
  constexpr int64_t kLength = 2000;
  for (const uint64_t seed : TestSeeds(30)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    std::vector<Part> parts;
    for (int64_t begin = 0; begin < kLength;) {
      const auto length = std::min<int64_t>(
          kLength - begin, 1 + static_cast<int64_t>(random.Below(100)));
      parts.push_back(
          {begin, length, std::vector<float>(StateOf(length), 0.0f)});
      begin += length;
    }
    std::vector<float> whole = RandomFloats(random, kLength);
    std::vector<float> cut = whole;
    std::vector<float> state(StateOf(kLength), 0.0f);
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> gradient = RandomFloats(random, kLength);
      ApplyOptimizer(Options(), step, kLength, 1.0f / 3, gradient.data(),
                     whole.data(), state.data(), whole.data());
      for (Part& part : parts) {
        float* const values = cut.data() + part.begin;
        ApplyOptimizer(Options(), step, part.length, 1.0f / 3,
                       gradient.data() + part.begin, values, part.state.data(),
                       values);
      }
      ASSERT_EQ(std::memcmp(whole.data(), cut.data(), kLength * 4), 0)
          << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, OptimizerTest,
                         testing::Values(UpdateRule::kSgd,
                                         UpdateRule::kNesterov,
                                         UpdateRule::kAdam, UpdateRule::kAdamW),
                         [](const auto& info) {
                           return std::string(UpdateRuleName(info.param));
                         });

struct OptionsCase {
  const char* name;
  std::function<void(OptimizerOptions&, float)> set;
  std::vector<float> good;
  std::vector<float> bad;
};

class OptimizerOptionsTest : public testing::TestWithParam<OptionsCase> {};

TEST_P(OptimizerOptionsTest, OptionsOutOfRangeAreRefused) {
  for (const float value : GetParam().good) {
    OptimizerOptions options;
    GetParam().set(options, value);
    EXPECT_TRUE(options.Validate().ok()) << value << options.Validate();
  }
  for (const float value : GetParam().bad) {
    OptimizerOptions options;
    GetParam().set(options, value);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(GetParam().name) + " is "));
  }
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kBelow1 = 0x1.fffffep-1f;

INSTANTIATE_TEST_SUITE_P(
    Fields, OptimizerOptionsTest,
    testing::Values(OptionsCase{"learning_rate",
                                [](auto& o, float v) { o.learning_rate = v; },
                                {0.0f, 1e-30f, 1.0f, 1e30f},
                                {-1e-6f, kInf, -kInf, kNan}},
                    OptionsCase{"momentum",
                                [](auto& o, float v) { o.momentum = v; },
                                {0.0f, 0.5f, kBelow1},
                                {-0.1f, 1.0f, kInf, kNan}},
                    OptionsCase{"weight_decay",
                                [](auto& o, float v) { o.weight_decay = v; },
                                {0.0f, 1e-4f, 2.0f},
                                {-1e-4f, kInf, kNan}},
                    OptionsCase{"beta1",
                                [](auto& o, float v) { o.beta1 = v; },
                                {0.0f, 0.9f, kBelow1},
                                {-0.1f, 1.0f, kInf, kNan}},
                    OptionsCase{"beta2",
                                [](auto& o, float v) { o.beta2 = v; },
                                {0.0f, 0.999f, kBelow1},
                                {-0.1f, 1.0f, kInf, kNan}},
                    OptionsCase{"epsilon",
                                [](auto& o, float v) { o.epsilon = v; },
                                {1e-30f, 1e-8f, 1.0f},
                                {0.0f, -1e-8f, kInf, kNan}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nereus
