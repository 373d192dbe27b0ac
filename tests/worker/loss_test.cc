#include "worker/trainer/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

// Largest relative error of one float rounding.
constexpr double kUnit = 0x1p-24;

TEST(LossTest, EqualLogitsGiveTheLogarithmOfTheClasses) {
  const std::vector<float> logits(8, 3.0f);
  const int32_t labels[] = {0, 2};
  std::vector<float> gradient(8);
  const float loss =
      SoftmaxCrossEntropy(2, 4, logits.data(), labels, gradient.data());
  EXPECT_FLOAT_EQ(loss, std::log(4.0f));
  // The gradient is (1/4 - t) / 2 rows, where t is 1 for the label and 0 for
  // other classes. Powers of two are exact.
  EXPECT_THAT(gradient, testing::ElementsAre(-0.375f, 0.125f, 0.125f, 0.125f,
                                             0.125f, 0.125f, -0.375f, 0.125f));
}

TEST(LossTest, HandComputedCase) {
  // softmax(0, log 3) = (1/4, 3/4)
  const std::vector<float> logits = {0.0f, std::log(3.0f)};
  const int32_t label = 0;
  std::vector<float> gradient(2);
  EXPECT_FLOAT_EQ(
      SoftmaxCrossEntropy(1, 2, logits.data(), &label, gradient.data()),
      std::log(4.0f));
  EXPECT_FLOAT_EQ(gradient[0], -0.75f);
  EXPECT_FLOAT_EQ(gradient[1], 0.75f);
}

TEST(LossTest, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {1000.0f, -1000.0f};
  const int32_t label = 1;
  std::vector<float> gradient(2);
  EXPECT_EQ(SoftmaxCrossEntropy(1, 2, logits.data(), &label, gradient.data()),
            2000.0f);
  EXPECT_THAT(gradient, testing::ElementsAre(1.0f, -1.0f));
}

TEST(LossTest, NanOrInfiniteLogitShowsInTheLoss) {
  const float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), kInfinity}) {
    for (int place = 0; place < 3; ++place) {
      std::vector<float> logits = {1.0f, 2.0f, 3.0f};
      logits[place] = bad;
      const int32_t label = 1;
      std::vector<float> gradient(3);
      EXPECT_FALSE(std::isfinite(
          SoftmaxCrossEntropy(1, 3, logits.data(), &label, gradient.data())))
          << bad << " at " << place;
    }
  }
}

TEST(LossTest, GradientMayReplaceTheLogits) {
  std::vector<float> logits = {0.5f, -1.0f, 2.0f, 0.0f, 1.0f, -3.0f};
  const int32_t labels[] = {2, 0};
  std::vector<float> gradient(6);
  const float loss =
      SoftmaxCrossEntropy(2, 3, logits.data(), labels, gradient.data());
  EXPECT_EQ(SoftmaxCrossEntropy(2, 3, logits.data(), labels, logits.data()),
            loss);
  EXPECT_EQ(logits, gradient);
}

// Computes the loss in double.
double Reference(int64_t rows, int64_t classes,
                 const std::vector<double>& logits,
                 const std::vector<int32_t>& labels) {
  double total = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0.0;
    for (int64_t i = 0; i < classes; ++i) {
      sum += std::exp(logits[row * classes + i]);
    }
    total += std::log(sum) - logits[row * classes + labels[row]];
  }
  return total / static_cast<double>(rows);
}

TEST(LossTest, GradientAgreesWithCentralDifferencesInDouble) {
  const int64_t kRows = 3;
  const int64_t kClasses = 7;
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    std::vector<double> logits;
    std::vector<int32_t> labels;
    for (int64_t i = 0; i < kRows * kClasses; ++i) {
      logits.push_back(static_cast<float>(random.Uniform() * 8.0 - 4.0));
    }
    for (int64_t i = 0; i < kRows; ++i) {
      labels.push_back(static_cast<int32_t>(random.Below(kClasses)));
    }
    const std::vector<float> in(logits.begin(), logits.end());
    std::vector<float> gradient(in.size());
    const float loss = SoftmaxCrossEntropy(kRows, kClasses, in.data(),
                                           labels.data(), gradient.data());
    // The loss is a sum in double of float exponentials. Their error comes from
    // the subtraction (values of at most 8, so 8 units) and from exp (2 units).
    EXPECT_NEAR(loss, Reference(kRows, kClasses, logits, labels), 16 * kUnit);

    const double h = 1e-4;
    for (size_t i = 0; i < logits.size(); ++i) {
      std::vector<double> moved = logits;
      moved[i] += h;
      const double above = Reference(kRows, kClasses, moved, labels);
      moved[i] -= 2.0 * h;
      const double below = Reference(kRows, kClasses, moved, labels);
      // Truncation is h^2 / 6 times a third derivative below 1. The bound for
      // rounding is that of the loss above; it includes the product and the
      // difference, with values below 1.
      EXPECT_NEAR(gradient[i], (above - below) / (2.0 * h),
                  h * h / 6.0 + 16 * kUnit);
    }
  }
}

}  // namespace
}  // namespace nereus
