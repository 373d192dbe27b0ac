#include "worker/trainer/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/random.h"
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

absl::StatusOr<Batches> Batches::Create(const Options& options) {
  constexpr int64_t kExamplesMax = std::numeric_limits<uint32_t>::max();
  if (options.examples < 1 || options.examples > kExamplesMax) {
    return InvalidArgumentError("examples is ", options.examples,
                                ", must be in [1, ", kExamplesMax, "]");
  }
  if (options.batch < 1 || options.batch > options.examples) {
    return InvalidArgumentError("batch is ", options.batch, ", must be in [1, ",
                                options.examples,
                                "], the number of images to train with");
  }
  return Batches(options);
}

Batches::Batches(const Options& options)
    : options_(options), order_(options.examples), batch_(options.batch) {}

void Batches::Shuffle(int64_t pass) {
  // A batch lies in one pass, or in two that follow each other. So most calls
  // return here.
  if (pass == pass_) return;
  pass_ = pass;
  // The first value of the seed's generator, plus the pass, seeds the generator
  // that shuffles. So neighbouring seeds have no permutation in common.
  Random seeds(options_.seed);
  Random random(seeds.Next() + static_cast<uint64_t>(pass));
  std::iota(order_.begin(), order_.end(), 0u);
  // Shuffle of Fisher and Yates, from the last element to the second.
  for (uint64_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[random.Below(i + 1)]);
  }
}

absl::Span<const uint32_t> Batches::Examples(int64_t first) {
  NEREUS_CHECK(first >= 0) << first;
  for (int64_t i = 0; i < options_.batch; ++i) {
    Shuffle((first + i) / options_.examples);
    batch_[i] = order_[(first + i) % options_.examples];
  }
  return batch_;
}

namespace {

constexpr int64_t kSide = 28;

struct Point {
  float x;
  float y;
};

struct Segment {
  Point from;
  Point to;
};

// Segments of a display in the box from (-1, -1) to (1, 1), y downwards: a to
// g, clockwise from the top, then the one in the middle.
constexpr std::array<Segment, 7> kSegments = {{
    {{-1, -1}, {1, -1}},
    {{1, -1}, {1, 0}},
    {{1, 0}, {1, 1}},
    {{-1, 1}, {1, 1}},
    {{-1, 0}, {-1, 1}},
    {{-1, -1}, {-1, 0}},
    {{-1, 0}, {1, 0}},
}};

// Lit segments of each digit: bit i stands for segment i.
constexpr std::array<uint8_t, 10> kGlyphs = {
    0b0111111, 0b0000110, 0b1011011, 0b1001111, 0b1100110,
    0b1101101, 0b1111101, 0b0000111, 0b1111111, 0b1101111};

// Transformation from the box of the display to pixels.
struct Placement {
  Point center;
  float half_width;
  float half_height;
  float slant;  // Pixels to the right per pixel upwards.

  Point Apply(Point p) const {
    const float y = p.y * half_height;
    return {center.x + p.x * half_width - slant * y, center.y + y};
  }
};

// Returns the distance of a point to a segment.
float Distance(Point p, const Segment& segment) {
  const float dx = segment.to.x - segment.from.x;
  const float dy = segment.to.y - segment.from.y;
  const float px = p.x - segment.from.x;
  const float py = p.y - segment.from.y;
  const float along =
      std::clamp((px * dx + py * dy) / (dx * dx + dy * dy), 0.0f, 1.0f);
  const float x = px - along * dx;
  const float y = py - along * dy;
  return std::sqrt(x * x + y * y);
}

// Returns a uniform value in [low, high].
float Draw(Random* random, float low, float high) {
  return low + (high - low) * static_cast<float>(random->Uniform());
}

Placement DrawPlacement(Random* random) {
  Placement placement;
  placement.half_width = Draw(random, 3.5f, 6.5f);
  placement.half_height = Draw(random, 6.5f, 10.0f);
  placement.slant = Draw(random, -0.25f, 0.25f);
  const float shift = 3.0f;
  const float middle = (kSide - 1) / 2.0f;
  placement.center = {middle + Draw(random, -shift, shift),
                      middle + Draw(random, -shift, shift)};
  return placement;
}

// Draws a digit: its lit segments, each end displaced a little, with a soft
// edge and with noise.
void DrawImage(uint8_t glyph, Random* random, uint8_t* pixels) {
  const Placement placement = DrawPlacement(random);
  const float half_thickness = Draw(random, 0.6f, 1.6f);
  const float contrast = Draw(random, 0.45f, 1.0f);
  const float background = Draw(random, 0.0f, 0.25f) * (1.0f - contrast);
  const float noise = Draw(random, 0.05f, 0.3f);

  std::array<Segment, kSegments.size()> lit;
  size_t lit_count = 0;
  for (size_t i = 0; i < kSegments.size(); ++i) {
    if ((glyph >> i & 1) == 0) continue;
    Segment segment = {placement.Apply(kSegments[i].from),
                       placement.Apply(kSegments[i].to)};
    for (Point* end : {&segment.from, &segment.to}) {
      end->x += Draw(random, -0.8f, 0.8f);
      end->y += Draw(random, -0.8f, 0.8f);
    }
    lit[lit_count++] = segment;
  }

  for (int64_t i = 0; i < kSide * kSide; ++i) {
    const int64_t row = i / kSide;
    const Point p = {static_cast<float>(i - row * kSide),
                     static_cast<float>(row)};
    float distance = static_cast<float>(kSide);
    for (size_t j = 0; j < lit_count; ++j) {
      distance = std::min(distance, Distance(p, lit[j]));
    }
    // The edge is one pixel wide.
    const float ink = std::clamp(half_thickness + 0.5f - distance, 0.0f, 1.0f);
    const float value =
        background + contrast * ink + noise * Draw(random, -1.0f, 1.0f);
    pixels[i] = static_cast<uint8_t>(std::clamp(value, 0.0f, 1.0f) * 255.0f);
  }
}

}  // namespace

Dataset GenerateSynthetic(uint64_t seed, int64_t count) {
  Random random(seed);
  Dataset dataset;
  dataset.image = {kSide, kSide, 1};
  dataset.pixels.resize(count * kSide * kSide);
  dataset.labels.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    dataset.labels[i] = static_cast<uint8_t>(random.Below(kGlyphs.size()));
    DrawImage(kGlyphs[dataset.labels[i]], &random,
              dataset.pixels.data() + i * kSide * kSide);
  }
  return dataset;
}

}  // namespace nereus
