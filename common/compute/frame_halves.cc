#include "common/compute/frame_halves.h"

#include "common/compute/half.h"
#include "common/compute/vectors.h"

namespace nereus {
namespace {

// Number of values that are scaled at a time: so few that they stay in the L1
// cache until they are encoded.
constexpr int64_t kBlock = 1024;

// Returns 2^exponent.
float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(PowerOfTwoBits(exponent));
}

}  // namespace

int EncodeFloat16Frame(const float* values, int64_t count, uint16_t* halves) {
  const int exponent =
      HalfExponent(std::bit_cast<uint32_t>(LargestFinite(values, count)));
  if (exponent == 0) {
    ToFloat16(values, count, halves);
    return exponent;
  }
  float scaled[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    ScaleTo(values + start, length, PowerOfTwo(-exponent), scaled);
    ToFloat16(scaled, length, halves + start);
  }
  return exponent;
}

void DecodeFloat16Frame(const uint16_t* halves, int64_t count, int exponent,
                        float* values) {
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    FromFloat16(halves + start, length, values + start);
    if (exponent == 0) continue;
    ScaleTo(values + start, length, PowerOfTwo(exponent), values + start);
  }
}

}  // namespace nereus
