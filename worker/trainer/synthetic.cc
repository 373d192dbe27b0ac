#include "worker/trainer/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/random.h"

namespace nereus {
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
