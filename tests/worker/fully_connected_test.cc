#include "worker/trainer/fully_connected.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/testing/test_seed.h"
#include "tests/worker/layer_checks.h"

namespace nereus {
namespace {

using testing::ElementsAre;

class FullyConnectedTest : public testing::Test {
 protected:
  const std::shared_ptr<Device> cpu_ = MakeCpuDevice();
};

TEST_F(FullyConnectedTest, HandComputedCase) {
  FullyConnected layer(cpu_.get(), {1, 1, 3}, /*outputs=*/2);
  const std::vector<float> input = {1, 2, 3,  //
                                    4, 5, 6};
  const std::vector<float> parameters = {1,  10, 100,  //
                                         2,  20, 200,  //
                                         -1, -2};
  std::vector<float> output(4);
  layer.Forward(2, input.data(), parameters.data(), output.data());
  EXPECT_THAT(output, ElementsAre(320, 640, 653, 1306));

  const std::vector<float> output_gradient = {1, 0,  //
                                              3, -1};
  std::vector<float> input_gradient(6);
  layer.Backward(2, input.data(), parameters.data(), output_gradient.data(),
                 nullptr, input_gradient.data());
  EXPECT_THAT(input_gradient, ElementsAre(1, 10, 100, 1, 10, 100));
}

TEST_F(FullyConnectedTest, GradientsAreExact) {
  const struct {
    ImageShape input;
    int64_t outputs;
    int64_t images;
  } kCases[] = {
      {{1, 1, 1}, 1, 1},
      {{1, 1, 7}, 3, 1},
      {{3, 2, 5}, 4, 3},
      {{1, 1, 5}, 9, 8},
  };
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    for (const auto& c : kCases) {
      FullyConnected layer(cpu_.get(), c.input, c.outputs);
      const std::vector<float> input =
          RandomIntegers(c.images * c.input.length(), 3, &random);
      ExpectExactGradients(c.images, input, &random, &layer);
    }
  }
}

TEST_F(FullyConnectedTest, SpecHasTheBatchAsRows) {
  const FullyConnected layer(cpu_.get(), {4, 4, 50}, 500);
  const LayerSpec expected = {
      "", LayerKind::kFullyConnected, 500, 800, 500 * 800 + 500, 32, true};
  EXPECT_EQ(layer.Spec(32), expected);
}

}  // namespace
}  // namespace nereus
