#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/layer.h"

namespace nereus {

// Grey images with a class each, as bytes.
struct Dataset {
  ImageShape image;
  std::vector<uint8_t> pixels;  // {count(), image.length()}
  std::vector<uint8_t> labels;  // {count()}

  int64_t count() const { return static_cast<int64_t>(labels.size()); }

  // One more than the largest label; at most 256.
  int64_t classes() const;
};

// What a pixel becomes before a network sees it: (pixel / 255 - mean) /
// deviation.
struct Normalisation {
  float mean = 0.0f;
  float deviation = 1.0f;
};

// Mean and standard deviation of all pixels of `dataset`, whose normalised
// pixels then have mean 0 and variance 1. Summed in integers, so that it is the
// same everywhere. The deviation is 1 if all pixels are equal.
Normalisation NormalisationOf(const Dataset& dataset);

// Writes the images at `indices`, normalised, and their labels, one after
// another.
//   images  float32, shape {indices.size(), image.length()}
//   labels  {indices.size()}
// REQUIRES: indices are in [0, count()).
void CopyExamples(const Dataset& dataset, const Normalisation& normalisation,
                  absl::Span<const uint32_t> indices, absl::Span<float> images,
                  absl::Span<int32_t> labels);

// CRC-32C of the images' size, pixels and labels: the same for two processes
// that have the same examples in the same order.
uint32_t ChecksumOf(const Dataset& dataset);

// What to train on and what to measure accuracy on.
struct DataSplit {
  Dataset train;
  Dataset test;
  Normalisation normalisation;  // Of `train`.

  int64_t classes() const { return std::max(train.classes(), test.classes()); }
};

// Cuts off the last `holdout` share of the examples, in their order and rounded
// to the nearest number, as test data.
//
// Errors: kInvalidArgument, `holdout` isn't between 0 and 1, or leaves nothing
// on one side; names both numbers.
absl::StatusOr<DataSplit> Split(Dataset dataset, double holdout);

// Drops all but the first `limit` examples; 0 keeps all.
void Truncate(int64_t limit, Dataset* dataset);

}  // namespace nereus
