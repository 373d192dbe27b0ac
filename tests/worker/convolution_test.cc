// Checks the convolution by hand-computed cases, against plain loops, and its
// gradients by exact differences.

#include "worker/trainer/convolution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/test_seed.h"
#include "tests/worker/layer_checks.h"

namespace nereus {
namespace {

using testing::ElementsAre;

struct Case {
  const char* name;
  ConvolutionShape shape;
  int64_t images;
};

constexpr Case kCases[] = {
    {"one_pixel", {{1, 1, 1}, 1, 1, 0}, 1},
    {"kernel_as_large_as_the_image", {{3, 4, 2}, 3, 3, 0}, 2},
    {"one_image", {{6, 5, 1}, 4, 3, 0}, 1},
    {"rows_of_five_floats", {{7, 9, 1}, 3, 5, 0}, 3},
    {"rows_of_many_floats", {{7, 6, 3}, 2, 5, 0}, 2},
    {"padded", {{4, 5, 2}, 3, 3, 1}, 2},
    {"padded_by_more_than_the_image", {{2, 1, 1}, 2, 5, 4}, 1},
};

class ConvolutionShapesTest : public testing::TestWithParam<Case> {};

float InputAt(const ConvolutionShape& shape, const float* image, int64_t y,
              int64_t x, int64_t channel) {
  if (y < 0 || y >= shape.input.height) return 0.0f;
  if (x < 0 || x >= shape.input.width) return 0.0f;
  return image[(y * shape.input.width + x) * shape.input.channels + channel];
}

// One output, by its definition.
float OutputAt(const ConvolutionShape& shape, const float* image,
               const float* parameters, int64_t y, int64_t x,
               int64_t output_channel) {
  const float* weight = parameters + output_channel * shape.patch_length();
  float sum =
      parameters[shape.output_channels * shape.patch_length() + output_channel];
  for (int64_t ky = 0; ky < shape.kernel; ++ky) {
    for (int64_t kx = 0; kx < shape.kernel; ++kx) {
      for (int64_t channel = 0; channel < shape.input.channels; ++channel) {
        sum += *weight++ * InputAt(shape, image, y - shape.padding + ky,
                                   x - shape.padding + kx, channel);
      }
    }
  }
  return sum;
}

TEST_P(ConvolutionShapesTest, ForwardIsTheDefinition) {
  const ConvolutionShape& shape = GetParam().shape;
  const int64_t images = GetParam().images;
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    Convolution convolution(shape, images);
    const std::vector<float> input =
        RandomIntegers(images * shape.input.length(), 3, &random);
    const std::vector<float> parameters =
        RandomIntegers(convolution.Spec(images).parameters, 3, &random);
    const ImageShape out = convolution.output();
    std::vector<float> output(images * out.length(), -1.0f);
    convolution.Forward(images, input.data(), parameters.data(), output.data());

    std::vector<float> expected;
    for (int64_t image = 0; image < images; ++image) {
      const float* pixels = input.data() + image * shape.input.length();
      for (int64_t y = 0; y < out.height; ++y) {
        for (int64_t x = 0; x < out.width; ++x) {
          for (int64_t channel = 0; channel < out.channels; ++channel) {
            expected.push_back(
                OutputAt(shape, pixels, parameters.data(), y, x, channel));
          }
        }
      }
    }
    EXPECT_EQ(output, expected);
  }
}

TEST_P(ConvolutionShapesTest, GradientsAreExact) {
  const ConvolutionShape& shape = GetParam().shape;
  for (const uint64_t seed : TestSeeds(2)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    Convolution convolution(shape, GetParam().images);
    const std::vector<float> input =
        RandomIntegers(GetParam().images * shape.input.length(), 3, &random);
    ExpectExactGradients(GetParam().images, input, &random, &convolution);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ConvolutionShapesTest,
                         testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(ConvolutionTest, HandComputedCase) {
  Convolution convolution({{2, 3, 1}, 1, 2, 0}, /*images_max=*/1);
  const std::vector<float> input = {1, 2, 3,  //
                                    4, 5, 6};
  const std::vector<float> parameters = {1, 10, 100, 1000, 7};
  std::vector<float> output(2);
  convolution.Forward(1, input.data(), parameters.data(), output.data());
  EXPECT_THAT(output, ElementsAre(5428, 6539));

  const std::vector<float> output_gradient = {1, 2};
  std::vector<float> gradient(5);
  std::vector<float> input_gradient(6);
  convolution.Backward(1, input.data(), parameters.data(),
                       output_gradient.data(), gradient.data(),
                       input_gradient.data());
  EXPECT_THAT(gradient, ElementsAre(5, 8, 14, 17, 3));
  EXPECT_THAT(input_gradient, ElementsAre(1, 12, 20, 100, 1200, 2000));
}

TEST(ConvolutionTest, PatchesHaveZerosWhereTheyLeaveTheImage) {
  const ConvolutionShape shape = {{1, 2, 1}, 1, 3, 1};
  const std::vector<float> input = {5, 6};
  std::vector<float> patches(2 * 9, -1.0f);
  ImagesToPatches(shape, 1, input.data(), patches.data());
  EXPECT_THAT(patches, ElementsAre(0, 0, 0, 0, 5, 6, 0, 0, 0,  //
                                   0, 0, 0, 5, 6, 0, 0, 0, 0));

  std::vector<float> sums(2, -1.0f);
  PatchesToImages(shape, 1, patches.data(), sums.data());
  EXPECT_THAT(sums, ElementsAre(10, 12));  // Each is in two patches.
}

TEST(ConvolutionTest, SpecCountsPositionsAsRows) {
  const Convolution convolution({{28, 28, 1}, 20, 5, 0}, /*images_max=*/32);
  EXPECT_EQ(convolution.output(), (ImageShape{24, 24, 20}));
  const LayerSpec expected = {
      "", LayerKind::kConvolution, 20, 25, 20 * 25 + 20, 32 * 24 * 24};
  EXPECT_EQ(convolution.Spec(32), expected);
}

TEST(ConvolutionTest, FewerImagesThanTheMostMayBePassed) {
  Random random(1);
  const ConvolutionShape shape = {{5, 5, 2}, 3, 3, 0};
  const std::vector<float> input =
      RandomIntegers(2 * shape.input.length(), 3, &random);
  Convolution large(shape, /*images_max=*/9);
  ExpectExactGradients(2, input, &random, &large);
}

}  // namespace
}  // namespace nereus
