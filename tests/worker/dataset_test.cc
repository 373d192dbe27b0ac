#include "worker/trainer/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace
}  // namespace nereus
