#include "worker/trainer/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/crc32c.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/gemm.h"
#include "tests/worker/layer_checks.h"
#include "worker/trainer/layers.h"

namespace nereus {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns `count` images of two pixels; image i has pixels 10 i and 10 i + 1,
// and class i mod 3.
Dataset Numbered(int64_t count) {
  Dataset dataset;
  dataset.image = {1, 2, 1};
  for (int64_t i = 0; i < count; ++i) {
    dataset.pixels.push_back(static_cast<uint8_t>(10 * i));
    dataset.pixels.push_back(static_cast<uint8_t>(10 * i + 1));
    dataset.labels.push_back(static_cast<uint8_t>(i % 3));
  }
  return dataset;
}

TEST(DatasetTest, ClassesWithoutImagesAreCounted) {
  Dataset dataset = Numbered(5);
  EXPECT_EQ(dataset.ClassesWithoutImages(), 0);
  dataset.labels[4] = 77;
  EXPECT_EQ(dataset.classes(), 78);
  EXPECT_EQ(dataset.ClassesWithoutImages(), 74);
  EXPECT_EQ(Dataset().ClassesWithoutImages(), 0);
}

TEST(DatasetTest, ClassesAreOneMoreThanTheLargestLabel) {
  EXPECT_EQ(Numbered(0).classes(), 0);
  EXPECT_EQ(Numbered(1).classes(), 1);
  EXPECT_EQ(Numbered(5).classes(), 3);
  Dataset dataset = Numbered(1);
  dataset.labels[0] = 255;
  EXPECT_EQ(dataset.classes(), 256);
}

TEST(DatasetTest, SplitHoldsOutTheLastExamples) {
  const absl::StatusOr<DataSplit> split = Split(Numbered(10), 0.2);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->train.count(), 8);
  EXPECT_EQ(split->train.pixels.size(), 16u);
  EXPECT_EQ(split->train.pixels.back(), 71);
  EXPECT_THAT(split->test.labels, ElementsAre(2, 0));
  EXPECT_THAT(split->test.pixels, ElementsAre(80, 81, 90, 91));
  EXPECT_EQ(split->test.image, (ImageShape{1, 2, 1}));
  EXPECT_EQ(split->classes(), 3);
  EXPECT_EQ(split->normalisation.mean, NormalisationOf(split->train).mean);
}

TEST(DatasetTest, SplitRoundsToTheNearestCount) {
  EXPECT_EQ(Split(Numbered(5), 0.3)->test.count(), 2);
  EXPECT_EQ(Split(Numbered(7), 0.2)->test.count(), 1);
}

TEST(DatasetTest, SplitThatLeavesASideEmptyIsRefused) {
  const struct {
    int64_t count;
    double holdout;
    const char* message;
  } kCases[] = {
      {10, 0.0, "holdout is 0, must be between 0 and 1"},
      {10, 1.0, "holdout is 1, must be"},
      {10, -0.5, "holdout is -0.5, must be"},
      {10, std::nan(""), "holdout is nan, must be"},
      {10, 0.01, "holdout 0.01 of 10 images leaves 10 to train and 0 to test"},
      {1, 0.9, "of 1 images leaves 0 to train and 1 to test with"},
      {0, 0.5, "of 0 images leaves 0 to train and 0 to test with"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Split(Numbered(c.count), c.holdout).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(DatasetTest, ChecksumsAreEqualOnlyForEqualExamples) {
  const uint32_t checksum = ChecksumOf(Numbered(4));
  EXPECT_EQ(ChecksumOf(Numbered(4)), checksum);
  EXPECT_NE(ChecksumOf(Numbered(5)), checksum);
  Dataset pixel = Numbered(4);
  pixel.pixels[3] ^= 1;
  EXPECT_NE(ChecksumOf(pixel), checksum);
  Dataset label = Numbered(4);
  label.labels[3] ^= 1;
  EXPECT_NE(ChecksumOf(label), checksum);
  Dataset order = Numbered(4);
  std::swap(order.pixels[0], order.pixels[2]);
  EXPECT_NE(ChecksumOf(order), checksum);
  // These images have equal bytes and another shape.
  Dataset shape = Numbered(4);
  shape.image = {2, 1, 1};
  EXPECT_NE(ChecksumOf(shape), checksum);
}

TEST(DatasetTest, TruncateKeepsTheFirstExamples) {
  const struct {
    int64_t limit;
    int64_t count;
  } kCases[] = {{0, 4}, {1, 1}, {3, 3}, {4, 4}, {5, 4}};
  for (const auto& c : kCases) {
    Dataset dataset = Numbered(4);
    Truncate(c.limit, &dataset);
    EXPECT_EQ(dataset.count(), c.count) << "limit " << c.limit;
    EXPECT_EQ(std::ssize(dataset.pixels), 2 * c.count);
  }
}

TEST(DatasetTest, NormalisationGivesMeanZeroAndVarianceOne) {
  const Dataset dataset = Numbered(7);
  const Normalisation normalisation = NormalisationOf(dataset);
  std::vector<uint32_t> indices = {0, 1, 2, 3, 4, 5, 6};
  std::vector<float> images(14);
  std::vector<int32_t> labels(7);
  CopyExamples(dataset, normalisation, indices, absl::MakeSpan(images),
               absl::MakeSpan(labels));
  double sum = 0.0;
  double squares = 0.0;
  for (float value : images) {
    sum += value;
    squares += double{value} * value;
  }
  // Each value is at most 2, with an error of a few roundings of 2^-24.
  EXPECT_NEAR(sum / 14.0, 0.0, 1e-6);
  EXPECT_NEAR(squares / 14.0, 1.0, 2e-6);
}

TEST(DatasetTest, EqualPixelsAreOnlyShifted) {
  Dataset dataset = Numbered(2);
  dataset.pixels = {51, 51, 51, 51};
  const Normalisation normalisation = NormalisationOf(dataset);
  EXPECT_FLOAT_EQ(normalisation.mean, 0.2f);
  EXPECT_EQ(normalisation.deviation, 1.0f);
  EXPECT_EQ(NormalisationOf(Dataset()).deviation, 1.0f);
}

TEST(DatasetTest, CopyExamplesFollowsTheIndices) {
  std::vector<float> images(6);
  std::vector<int32_t> labels(3);
  Normalisation normalisation;
  normalisation.mean = 0.5f;
  normalisation.deviation = 0.25f;
  CopyExamples(Numbered(9), normalisation, {8, 1, 8}, absl::MakeSpan(images),
               absl::MakeSpan(labels));
  EXPECT_THAT(labels, ElementsAre(2, 1, 2));
  const float kExpected[] = {80, 81, 10, 11, 80, 81};
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(images[i], (kExpected[i] / 255.0 - 0.5) / 0.25, 4 * 0x1p-24 * 2)
        << i;
  }
}

Batches MakeBatches(int64_t examples, int64_t batch, uint64_t seed = 1) {
  const absl::StatusOr<Batches> batches =
      Batches::Create({examples, batch, seed});
  EXPECT_TRUE(batches.ok()) << batches.status();
  return *batches;
}

// Returns the order of the examples in pass `pass` over all of them.
std::vector<uint32_t> Pass(int64_t examples, int64_t pass, uint64_t seed = 1) {
  Batches batches = MakeBatches(examples, examples, seed);
  const absl::Span<const uint32_t> all = batches.Examples(pass * examples);
  return {all.begin(), all.end()};
}

TEST(BatchesTest, WorkersTogetherSeeTheExamplesOfASingleWorker) {
  const struct {
    int64_t examples;
    int64_t batch;
    int workers;
  } kCases[] = {{100, 5, 4}, {103, 1, 7}, {64, 16, 4}, {9, 4, 2}, {50, 50, 1}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.examples << " " << c.batch);
    Batches alone = MakeBatches(c.examples, c.batch * c.workers);
    std::vector<Batches> workers(c.workers, MakeBatches(c.examples, c.batch));
    for (int64_t step = 0; step < 40; ++step) {
      std::vector<uint32_t> together;
      for (int position = 0; position < c.workers; ++position) {
        const absl::Span<const uint32_t> some =
            workers[position].Examples((step * c.workers + position) * c.batch);
        together.insert(together.end(), some.begin(), some.end());
      }
      EXPECT_EQ(absl::MakeConstSpan(together),
                alone.Examples(step * c.workers * c.batch));
    }
  }
}

TEST(BatchesTest, PassHasEachExampleOnce) {
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::vector<uint32_t> examples = Pass(103, pass);
    absl::c_sort(examples);
    std::vector<uint32_t> all(103);
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(examples, all);
  }
}

TEST(BatchesTest, BatchMayEndOnePassAndBeginTheNext) {
  Batches batches = MakeBatches(10, 4);
  const absl::Span<const uint32_t> across = batches.Examples(8);
  const std::vector<uint32_t> first = Pass(10, 0);
  const std::vector<uint32_t> second = Pass(10, 1);
  EXPECT_THAT(across,
              testing::ElementsAre(first[8], first[9], second[0], second[1]));
}

TEST(BatchesTest, OrderDependsOnSeedAndPass) {
  const std::vector<uint32_t> order = Pass(64, 3, 1);
  EXPECT_EQ(Pass(64, 3, 1), order);
  EXPECT_NE(Pass(64, 4, 1), order);
  EXPECT_NE(Pass(64, 3, 2), order);
  // Earlier calls do not change the order: a worker may start at any batch.
  Batches resumed = MakeBatches(64, 64, 1);
  resumed.Examples(0);
  EXPECT_EQ(resumed.Examples(3 * 64), absl::MakeConstSpan(order));
  // Pass p of seed s + 1 must differ from pass p + 1 of seed s.
  EXPECT_NE(Pass(64, 2, 2), order);
}

TEST(BatchesTest, OrderIsTheSameOnEveryMachine) {
  EXPECT_THAT(Pass(8, 0), testing::ElementsAre(4, 1, 7, 5, 3, 0, 6, 2));
}

// Every example is equally likely at every place. The test computes chi-squared
// for the first place of many passes.
TEST(BatchesTest, ShuffleIsFair) {
  const int kExamples = 10;
  const int kEpochs = 20000;
  std::vector<int> first(kExamples);
  Batches batches = MakeBatches(kExamples, 1);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    ++first[batches.Examples(epoch * kExamples)[0]];
  }
  const double expected = static_cast<double>(kEpochs) / kExamples;
  double chi_squared = 0.0;
  for (int count : first) {
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  // With nine degrees of freedom, the probability of a larger value is 1e-5.
  EXPECT_LT(chi_squared, 39.5);
}

TEST(BatchesTest, BadOptionsAreRefusedWithTheirValues) {
  const struct {
    Batches::Options options;
    const char* message;
  } kCases[] = {
      {{0, 1, 1}, "examples is 0, must be in [1, 4294967295]"},
      {{int64_t{1} << 32, 1, 1}, "examples is 4294967296"},
      {{10, 0, 1}, "batch is 0, must be in [1, 10]"},
      {{10, 11, 1}, "batch is 11, must be in [1, 10]"},
      {{10, int64_t{1} << 62, 1}, "must be in [1, 10]"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Batches::Create(c.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(SyntheticTest, SameBitsForTheSameSeed) {
  const Dataset dataset = GenerateSynthetic(1, 50);
  EXPECT_EQ(dataset.image, (ImageShape{28, 28, 1}));
  EXPECT_EQ(dataset.count(), 50);
  EXPECT_EQ(Crc32c(dataset.pixels.data(), dataset.pixels.size()), 0x7a5f56ee);
  EXPECT_EQ(Crc32c(dataset.labels.data(), dataset.labels.size()), 0xbd5a8a35);
  EXPECT_NE(GenerateSynthetic(2, 50).pixels, dataset.pixels);
}

TEST(SyntheticTest, LongerSetBeginsWithTheShorterSet) {
  Dataset longer = GenerateSynthetic(1, 30);
  const Dataset shorter = GenerateSynthetic(1, 20);
  Truncate(20, &longer);
  EXPECT_EQ(longer.pixels, shorter.pixels);
  EXPECT_EQ(longer.labels, shorter.labels);
  EXPECT_EQ(GenerateSynthetic(1, 0).count(), 0);
}

TEST(SyntheticTest, HasAllClassesAndNoImageTwice) {
  const Dataset dataset = GenerateSynthetic(1, 500);
  const std::set<uint8_t> labels(dataset.labels.begin(), dataset.labels.end());
  EXPECT_EQ(labels.size(), 10u);
  std::set<std::vector<uint8_t>> images;
  for (int64_t i = 0; i < 500; ++i) {
    const uint8_t* pixels = dataset.pixels.data() + i * 784;
    images.insert(std::vector<uint8_t>(pixels, pixels + 784));
  }
  EXPECT_EQ(images.size(), 500u);
}

// The bound is a tenth of the images, plus or minus six standard deviations of
// a binomial distribution.
TEST(SyntheticTest, ClassesAreEquallyLikely) {
  const Dataset dataset = GenerateSynthetic(3, 1000);
  std::vector<int> counts(10);
  for (uint8_t label : dataset.labels) ++counts[label];
  for (int count : counts) EXPECT_NEAR(count, 100, 6 * 9.5);
}

// Returns the accuracy of one fully connected layer, by gradient descent.
double LinearAccuracy(const DataSplit& data, int64_t epochs) {
  const int64_t kBatch = 32;
  const std::shared_ptr<Device> cpu = MakeCpuDevice();
  FullyConnected layer(cpu.get(), data.train.image, 10);
  std::vector<float> parameters(layer.Spec(kBatch).parameters);
  std::vector<float> gradient(parameters.size());
  std::vector<float> images(kBatch * 784);
  std::vector<int32_t> labels(kBatch);
  std::vector<float> output(kBatch * 10);
  absl::StatusOr<Batches> batches =
      Batches::Create({data.train.count(), kBatch, 1});
  EXPECT_TRUE(batches.ok()) << batches.status();
  for (int64_t first = 0; first < epochs * data.train.count();
       first += kBatch) {
    CopyExamples(data.train, data.normalisation, batches->Examples(first),
                 absl::MakeSpan(images), absl::MakeSpan(labels));
    layer.Forward(kBatch, images.data(), parameters.data(), output.data());
    SoftmaxCrossEntropy(kBatch, 10, output.data(), labels.data(),
                        output.data());
    FactorGradient(kBatch, 10, 784, true, 1.0f, output.data(), images.data(),
                   gradient.data());
    for (size_t i = 0; i < gradient.size(); ++i) {
      parameters[i] -= 0.01f * gradient[i];
    }
  }
  int64_t correct = 0;
  for (uint32_t i = 0; i < data.test.count(); ++i) {
    CopyExamples(data.test, data.normalisation, {i},
                 absl::MakeSpan(images).subspan(0, 784),
                 absl::MakeSpan(labels).subspan(0, 1));
    layer.Forward(1, images.data(), parameters.data(), output.data());
    correct += std::max_element(output.begin(), output.begin() + 10) -
                   output.begin() ==
               labels[0];
  }
  return static_cast<double>(correct) / static_cast<double>(data.test.count());
}

TEST(SyntheticTest, ConvolutionsLearnTheDigitsBetterThanALinearClassifier) {
  SetGemmThreads(1);
  const absl::StatusOr<DataSplit> data =
      Split(GenerateSynthetic(1, 5000), /*holdout=*/0.2);
  ASSERT_TRUE(data.ok()) << data.status();
  const double linear = LinearAccuracy(*data, /*epochs=*/20);
  EXPECT_GT(linear, 0.5);
  EXPECT_LT(linear, 0.9);
  // The network makes less than half of the linear classifier's errors.
  OptimizerOptions optimizer;
  optimizer.learning_rate = 0.01f;
  const double cnn = TrainedAccuracy("cnn", *data, optimizer, /*batch=*/32,
                                     /*epochs=*/3);
  EXPECT_GT(cnn, 1.0 - (1.0 - linear) / 2);
}

}  // namespace

}  // namespace nereus
