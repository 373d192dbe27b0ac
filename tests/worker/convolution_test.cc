// Checks the convolution by hand-computed cases, against plain loops, and its
// gradients by exact differences.

#include "worker/trainer/convolution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
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
    {"one_pixel", {{1, 1, 1}, 1, 1}, 1},
    {"kernel_as_large_as_the_image", {{3, 4, 2}, 3, 3}, 2},
    {"one_image", {{6, 5, 1}, 4, 3}, 1},
    {"rows_of_five_floats", {{7, 9, 1}, 3, 5}, 3},
    {"rows_of_many_floats", {{7, 6, 3}, 2, 5}, 2},
};

std::unique_ptr<Layer> MakeConvolution(const ConvolutionShape& shape,
                                       int64_t images_max) {
  static const auto& cpu = *new std::shared_ptr<Device>(MakeCpuDevice());
  return *Convolution::Create(cpu.get(), shape, images_max);
}

class ConvolutionShapesTest : public testing::TestWithParam<Case> {};

float InputAt(const ConvolutionShape& shape, const float* image, int64_t y,
              int64_t x, int64_t channel) {
  return image[(y * shape.input.width + x) * shape.input.channels + channel];
}

// Returns one output, computed by the definition of a convolution.
float OutputAt(const ConvolutionShape& shape, const float* image,
               const float* parameters, int64_t y, int64_t x,
               int64_t output_channel) {
  const float* weight = parameters + output_channel * shape.patch_length();
  float sum =
      parameters[shape.output_channels * shape.patch_length() + output_channel];
  for (int64_t ky = 0; ky < shape.kernel; ++ky) {
    for (int64_t kx = 0; kx < shape.kernel; ++kx) {
      for (int64_t channel = 0; channel < shape.input.channels; ++channel) {
        sum += *weight++ * InputAt(shape, image, y + ky, x + kx, channel);
      }
    }
  }
  return sum;
}

TEST_P(ConvolutionShapesTest, ForwardEqualsTheDefinition) {
  const ConvolutionShape& shape = GetParam().shape;
  const int64_t images = GetParam().images;
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const auto convolution = MakeConvolution(shape, images);
    const std::vector<float> input =
        RandomIntegers(images * shape.input.length(), 3, &random);
    const std::vector<float> parameters =
        RandomIntegers(convolution->Spec(images).parameters, 3, &random);
    const ImageShape out = convolution->output();
    std::vector<float> output(images * out.length(), -1.0f);
    convolution->Forward(images, input.data(), parameters.data(),
                         output.data());

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
    const auto convolution = MakeConvolution(shape, GetParam().images);
    const std::vector<float> input =
        RandomIntegers(GetParam().images * shape.input.length(), 3, &random);
    ExpectExactGradients(GetParam().images, input, &random, convolution.get());
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ConvolutionShapesTest,
                         testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(ConvolutionTest, HandComputedCase) {
  const auto convolution = MakeConvolution({{2, 3, 1}, 1, 2}, 1);
  const std::vector<float> input = {1, 2, 3,  //
                                    4, 5, 6};
  const std::vector<float> parameters = {1, 10, 100, 1000, 7};
  std::vector<float> output(2);
  convolution->Forward(1, input.data(), parameters.data(), output.data());
  EXPECT_THAT(output, ElementsAre(5428, 6539));

  const std::vector<float> output_gradient = {1, 2};
  std::vector<float> gradient(5);
  std::vector<float> input_gradient(6);
  convolution->Backward(1, input.data(), parameters.data(),
                        output_gradient.data(), gradient.data(),
                        input_gradient.data());
  EXPECT_THAT(gradient, ElementsAre(5, 8, 14, 17, 3));
  EXPECT_THAT(input_gradient, ElementsAre(1, 12, 20, 100, 1200, 2000));
}

TEST(ConvolutionTest, PatchesOverlapAndAddUpAgain) {
  const ConvolutionShape shape = {{2, 3, 1}, 1, 2};
  const std::vector<float> input = {1, 2, 3,  //
                                    4, 5, 6};
  std::vector<float> patches(2 * 4, -1.0f);
  ImagesToPatches(shape, 1, input.data(), patches.data());
  EXPECT_THAT(patches, ElementsAre(1, 2, 4, 5,  //
                                   2, 3, 5, 6));

  std::vector<float> sums(6, -1.0f);
  PatchesToImages(shape, 1, patches.data(), sums.data());
  // The middle column counts twice, because it is in both patches.
  EXPECT_THAT(sums, ElementsAre(1, 4, 3, 4, 10, 6));
}

TEST(ConvolutionTest, SpecCountsPositionsAsRows) {
  const auto convolution = MakeConvolution({{28, 28, 1}, 20, 5}, 32);
  EXPECT_EQ(convolution->output(), (ImageShape{24, 24, 20}));
  const LayerSpec expected = {
      "", LayerKind::kConvolution, 20, 25, 20 * 25 + 20, 32 * 24 * 24};
  EXPECT_EQ(convolution->Spec(32), expected);
}

TEST(ConvolutionTest, BatchMayHaveFewerImagesThanTheMaximum) {
  Random random(1);
  const ConvolutionShape shape = {{5, 5, 2}, 3, 3};
  const std::vector<float> input =
      RandomIntegers(2 * shape.input.length(), 3, &random);
  const auto large = MakeConvolution(shape, /*images_max=*/9);
  ExpectExactGradients(2, input, &random, large.get());
}

}  // namespace
}  // namespace nereus
