#include "worker/trainer/dataset.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {

int64_t Dataset::classes() const {
  if (labels.empty()) return 0;
  return int64_t{*absl::c_max_element(labels)} + 1;
}

int64_t Dataset::ClassesWithoutImages() const {
  const std::set<int32_t> found(labels.begin(), labels.end());
  return classes() - static_cast<int64_t>(found.size());
}

Normalisation NormalisationOf(const Dataset& dataset) {
  // Integers add up without rounding: the result does not depend on the order.
  uint64_t sum = 0;
  uint64_t squares = 0;
  for (uint8_t pixel : dataset.pixels) {
    sum += pixel;
    squares += uint64_t{pixel} * pixel;
  }
  Normalisation result;
  if (dataset.pixels.empty()) return result;
  const double count = static_cast<double>(dataset.pixels.size());
  const double mean = static_cast<double>(sum) / count;
  const double variance = static_cast<double>(squares) / count - mean * mean;
  result.mean = static_cast<float>(mean / 255.0);
  // With a variance below 1e-6 the deviation stays 1: all, or nearly all,
  // pixels are equal.
  if (variance > 1e-6) {
    result.deviation = static_cast<float>(std::sqrt(variance) / 255.0);
  }
  return result;
}

void CopyExamples(const Dataset& dataset, const Normalisation& normalisation,
                  absl::Span<const uint32_t> indices, absl::Span<float> images,
                  absl::Span<int32_t> labels) {
  const int64_t length = dataset.image.length();
  NEREUS_CHECK(images.size() == indices.size() * length &&
               labels.size() == indices.size())
      << indices.size() << " examples into " << images.size() << " floats and "
      << labels.size() << " labels";
  // Multiplies and adds once per pixel: (p / 255 - mean) / deviation.
  const float scale = 1.0f / (255.0f * normalisation.deviation);
  const float offset = -normalisation.mean / normalisation.deviation;
  float* out = images.data();
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint8_t* in = dataset.pixels.data() + indices[i] * length;
    for (int64_t j = 0; j < length; ++j) out[j] = in[j] * scale + offset;
    out += length;
    labels[i] = dataset.labels[indices[i]];
  }
}

absl::StatusOr<DataSplit> Split(Dataset dataset, double holdout) {
  if (!(holdout > 0.0 && holdout < 1.0)) {
    return InvalidArgumentError("holdout is ", holdout,
                                ", must be between 0 and 1, both excluded");
  }
  const int64_t count = dataset.count();
  // Splits without shuffling, so all workers get the same two parts.
  const int64_t test_count = std::llround(static_cast<double>(count) * holdout);
  const int64_t train_count = count - test_count;
  if (test_count == 0 || train_count == 0) {
    return InvalidArgumentError("holdout ", holdout, " of ", count,
                                " images leaves ", train_count,
                                " to train and ", test_count, " to test with");
  }
  DataSplit split;
  const int64_t length = dataset.image.length();
  split.test.image = dataset.image;
  split.test.pixels.assign(dataset.pixels.begin() + train_count * length,
                           dataset.pixels.end());
  split.test.labels.assign(dataset.labels.begin() + train_count,
                           dataset.labels.end());
  split.train = std::move(dataset);
  Truncate(train_count, &split.train);
  split.normalisation = NormalisationOf(split.train);
  return split;
}

uint32_t ChecksumOf(const Dataset& dataset) {
  // The size is part of the checksum: equal bytes may be images of another
  // shape.
  const int32_t size[] = {static_cast<int32_t>(dataset.image.height),
                          static_cast<int32_t>(dataset.image.width),
                          static_cast<int32_t>(dataset.image.channels)};
  uint32_t crc = Crc32c(size, sizeof(size));
  crc = ExtendCrc32c(crc, dataset.pixels.data(), dataset.pixels.size());
  return ExtendCrc32c(crc, dataset.labels.data(), dataset.labels.size());
}

void Truncate(int64_t limit, Dataset* dataset) {
  if (limit <= 0 || limit >= dataset->count()) return;
  dataset->labels.resize(limit);
  dataset->pixels.resize(limit * dataset->image.length());
}

}  // namespace nereus
