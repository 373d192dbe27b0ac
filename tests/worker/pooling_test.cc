#include "worker/trainer/pooling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "tests/testing/test_seed.h"
#include "tests/worker/layer_checks.h"

namespace nereus {
namespace {

using testing::ElementsAre;

class MaxPoolingTest : public testing::Test {
 protected:
  const std::shared_ptr<Device> cpu_ = MakeCpuDevice();
};

TEST_F(MaxPoolingTest, TakesTheLargestOfEachWindow) {
  MaxPooling pooling(cpu_.get(), {2, 4, 1});
  const std::vector<float> input = {1, 7, -4, -3,  //
                                    5, 2, -1, -2};
  std::vector<float> output(2);
  pooling.Forward(1, input.data(), nullptr, output.data());
  EXPECT_THAT(output, ElementsAre(7, -1));

  const std::vector<float> output_gradient = {3, 5};
  std::vector<float> input_gradient(8, 9.0f);
  pooling.Backward(1, input.data(), nullptr, output_gradient.data(), nullptr,
                   input_gradient.data());
  EXPECT_THAT(input_gradient, ElementsAre(0, 3, 0, 0, 0, 0, 5, 0));
}

// Otherwise the loss would be finite, and no step would be skipped.
TEST_F(MaxPoolingTest, WindowWithANaNGivesANaN) {
  for (int place = 0; place < 4; ++place) {
    std::vector<float> input = {1, 2, 3, 4};
    input[place] = std::numeric_limits<float>::quiet_NaN();
    float output = 0;
    MaxPoolForward({2, 2, 1}, 1, input.data(), &output);
    EXPECT_TRUE(std::isnan(output)) << place;
  }
}

TEST_F(MaxPoolingTest, ChannelsArePooledSeparately) {
  MaxPooling pooling(cpu_.get(), {2, 2, 2});
  const std::vector<float> input = {1, 40, 2, 30, 3, 20, 4, 10};
  std::vector<float> output(2);
  pooling.Forward(1, input.data(), nullptr, output.data());
  EXPECT_THAT(output, ElementsAre(4, 40));
}

TEST_F(MaxPoolingTest, FirstOfEqualMaximaGetsTheGradient) {
  MaxPooling pooling(cpu_.get(), {2, 2, 1});
  const struct {
    std::vector<float> input;
    int winner;
  } kCases[] = {
      {{5, 5, 5, 5}, 0},
      {{1, 5, 5, 5}, 1},
      {{1, 2, 5, 5}, 2},
      {{5, 1, 1, 5}, 0},
  };
  for (const auto& c : kCases) {
    const float output_gradient = 1.0f;
    std::vector<float> input_gradient(4, 9.0f);
    pooling.Backward(1, c.input.data(), nullptr, &output_gradient, nullptr,
                     input_gradient.data());
    std::vector<float> expected(4, 0.0f);
    expected[c.winner] = 1.0f;
    EXPECT_EQ(input_gradient, expected) << testing::PrintToString(c.input);
  }
}

TEST_F(MaxPoolingTest, OddLastRowAndColumnBelongToNoWindow) {
  MaxPooling pooling(cpu_.get(), {3, 5, 1});
  EXPECT_EQ(pooling.output(), (ImageShape{1, 2, 1}));
  const std::vector<float> input = {1,  2,  3,  4,  99,  //
                                    5,  6,  7,  8,  99,  //
                                    99, 99, 99, 99, 99};
  std::vector<float> output(2);
  pooling.Forward(1, input.data(), nullptr, output.data());
  EXPECT_THAT(output, ElementsAre(6, 8));
}

TEST_F(MaxPoolingTest, GradientsAreExact) {
  const struct {
    ImageShape input;
    int64_t images;
  } kCases[] = {
      {{2, 2, 1}, 1}, {{4, 6, 3}, 2},  {{5, 4, 2}, 1},
      {{4, 5, 7}, 2}, {{7, 7, 17}, 1},
  };
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    for (const auto& c : kCases) {
      MaxPooling pooling(cpu_.get(), c.input);
      // The inputs are 4 apart, so a step of 1 doesn't change which input is
      // the largest.
      const std::vector<float> input =
          ShuffledIntegers(c.images * c.input.length(), 4.0f, &random);
      ExpectExactGradients(c.images, input, &random, &pooling);
    }
  }
}

TEST_F(MaxPoolingTest, LayerHasNoParameters) {
  EXPECT_EQ(MaxPooling(cpu_.get(), {4, 4, 1}).Spec(8).parameters, 0);
}

}  // namespace
}  // namespace nereus
