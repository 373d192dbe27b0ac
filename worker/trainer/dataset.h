#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "worker/trainer/layer.h"

namespace nereus {

// Grey images and the class of each image, as bytes.
struct Dataset {
  ImageShape image;
  std::vector<uint8_t> pixels;  // Shape {count(), image.length()}.
  std::vector<uint8_t> labels;  // Class of each image.

  // Number of images.
  int64_t count() const { return std::ssize(labels); }

  // Returns one more than the largest label; at most 256.
  int64_t classes() const;
  // Number of the labels below classes() that no image has.
  int64_t ClassesWithoutImages() const;
};

// Maps pixels to inputs of a network: (pixel / 255 - mean) / deviation.
struct Normalisation {
  float mean = 0.0f;
  float deviation = 1.0f;
};

// Returns mean and standard deviation of all pixels of `dataset`. Normalised
// pixels then have mean 0 and variance 1. The sums are integers, so the result
// has the same bits on every computer. If all pixels are equal, or nearly, the
// deviation is 1.
Normalisation NormalisationOf(const Dataset& dataset);

// Writes the normalised images at `indices`, and their labels, one after
// another.
//
//   images  float32, shape {indices.size(), image.length()}
//   labels  {indices.size()}
//
// REQUIRES: indices are in [0, count()).
void CopyExamples(const Dataset& dataset, const Normalisation& normalisation,
                  absl::Span<const uint32_t> indices, absl::Span<float> images,
                  absl::Span<int32_t> labels);

// Returns the CRC-32C of the images' size, pixels and labels. Two processes
// with equal checksums have the same examples in the same order.
uint32_t ChecksumOf(const Dataset& dataset);

// Images to train with, and images to measure the accuracy with.
struct DataSplit {
  Dataset train;
  Dataset test;
  Normalisation normalisation;  // Normalisation of `train`.

  int64_t classes() const { return std::max(train.classes(), test.classes()); }
};

// Splits off the last `holdout` share of the examples as test data, rounded to
// the nearest number of examples.
//
// Errors: kInvalidArgument, `holdout` is not between 0 and 1, or leaves no
// example to train with, or none to test with; the message has both numbers of
// examples.
absl::StatusOr<DataSplit> Split(Dataset dataset, double holdout);

// Drops all but the first `limit` examples; 0 keeps all.
void Truncate(int64_t limit, Dataset* dataset);

// Returns `count` generated images, 28x28, of the digits 0 to 9 on a
// seven-segment display: training data for a first try. Place, size, slant,
// thickness, contrast and noise vary from image to image, and segments are
// displaced. So no single pixel tells the digits apart. A network with
// convolutions learns them in a few passes through the images; a linear
// classifier is much worse.
//
// Equal seeds give equal bits on every computer. The images of a smaller set
// are the first images of a larger one. Which digit an image shows is random,
// too.
Dataset GenerateSynthetic(uint64_t seed, int64_t count);

// Order of the training examples: an endless sequence, the same on every
// worker. Each pass through the examples has a permutation of its own, which
// depends on the seed and the number of the pass only.
//
// Each step takes the next range of the sequence, as long as the batches of all
// workers together. Each worker takes one batch of this range, and no two
// workers take the same batch. If a pass ends within the range, an example can
// occur twice in the step. So P workers with batch K see, step by step, the
// examples that one worker with batch P x K sees.
class Batches {
 public:
  struct Options {
    int64_t examples = 0;  // Number of training examples.
    // Number of examples of this worker in a step; at most `examples`.
    int64_t batch = 0;
    uint64_t seed = 1;  // Must be equal on all workers.
  };

  // Errors: kInvalidArgument, a field out of range, with its value.
  static absl::StatusOr<Batches> Create(const Options& options);

  // Returns the indices of the examples at [first, first + batch) of the
  // sequence, first >= 0. Valid until the next call.
  absl::Span<const uint32_t> Examples(int64_t first);

 private:
  explicit Batches(const Options& options);

  // Writes the permutation of `pass` to order_.
  void Shuffle(int64_t pass);

  const Options options_;
  int64_t pass_ = -1;            // Pass of order_.
  std::vector<uint32_t> order_;  // Permutation of the examples.
  std::vector<uint32_t> batch_;  // Result of Examples.
};

}  // namespace nereus
