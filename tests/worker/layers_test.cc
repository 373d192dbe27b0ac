// Checks layers by hand-computed cases and against plain loops, and their
// gradients by exact differences.

#include "worker/trainer/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
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

TEST(ActivationTest, ReluKeepsPositiveValues) {
  // The length is above that of a vector register, and not a multiple of it.
  std::vector<float> values = {-1, 2, -0.5f, 0, 3, -7, 1e-30f, -1e-30f, 5};
  ReluForward(9, values.data());
  EXPECT_THAT(values, ElementsAre(0, 2, 0, 0, 3, 0, 1e-30f, 0, 5));

  std::vector<float> gradient = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ReluBackward(9, values.data(), gradient.data());
  EXPECT_THAT(gradient, ElementsAre(0, 2, 0, 0, 5, 0, 7, 0, 9));
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
  EXPECT_THAT(values, ElementsAre(0, -1));
  ReluForward(0, values.data());
  EXPECT_THAT(values, ElementsAre(0, -1));
}

class FullyConnectedTest : public testing::Test {
 protected:
  const std::shared_ptr<Device> cpu_ = MakeCpuDevice();
};

TEST_F(FullyConnectedTest, OutputsAreThoseOfAHandComputedCase) {
  FullyConnected layer(cpu_.get(), {1, 1, 3}, /*outputs=*/2);
  const std::vector<float> input = {1, 2, 3,  //
                                    4, 5, 6};
  const std::vector<float> parameters = {1,  10, 100,  //
                                         2,  20, 200,  //
                                         -1, -2};
  std::vector<float> output(4);
  layer.Forward(2, input.data(), parameters.data(), output.data());
  EXPECT_THAT(output, ElementsAre(320, 640, 653, 1306));
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

// Largest relative error of one float rounding.
constexpr double kUnit = 0x1p-24;

TEST(LossTest, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {1000.0f, -1000.0f};
  const int32_t label = 1;
  std::vector<float> gradient(2);
  EXPECT_EQ(SoftmaxCrossEntropy(1, 2, logits.data(), &label, gradient.data()),
            2000.0f);
  EXPECT_THAT(gradient, ElementsAre(1.0f, -1.0f));
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

}  // namespace

}  // namespace nereus
