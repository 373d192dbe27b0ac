#include "worker/trainer/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace nereus {
namespace {

TEST(ActivationTest, ReluKeepsPositiveValues) {
  // The length is above that of a vector register, and not a multiple of it.
  std::vector<float> values = {-1, 2, -0.5f, 0, 3, -7, 1e-30f, -1e-30f, 5};
  ReluForward(9, values.data());
  EXPECT_THAT(values, testing::ElementsAre(0, 2, 0, 0, 3, 0, 1e-30f, 0, 5));

  std::vector<float> gradient = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ReluBackward(9, values.data(), gradient.data());
  EXPECT_THAT(gradient, testing::ElementsAre(0, 2, 0, 0, 5, 0, 7, 0, 9));
}

TEST(ActivationTest, ReluDoesNotHideNan) {
  std::vector<float> values = {std::nanf(""), -1, 1, std::nanf(""), 2};
  ReluForward(5, values.data());
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_TRUE(std::isnan(values[3]));
}

TEST(ActivationTest, ReluTouchesNothingBeyondTheLength) {
  std::vector<float> values = {-1, -1};
  ReluForward(1, values.data());
  EXPECT_THAT(values, testing::ElementsAre(0, -1));
  ReluForward(0, values.data());
  EXPECT_THAT(values, testing::ElementsAre(0, -1));
}

}  // namespace
}  // namespace nereus
