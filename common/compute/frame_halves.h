#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace nereus {

// fp16 with one exponent for each frame. Encoding divides a frame's values by
// 2^exponent, which brings the largest magnitude to [2^14, 2^15). So only a
// value next to float32's largest number overflows, and the smallest values
// lose less than 2^-39 of the largest.

// The range of a frame's exponent (FrameHeader::exponent): 2^exponent and
// 2^-exponent are normal numbers.
inline constexpr int kHalfExponentMin = -112;
inline constexpr int kHalfExponentMax = 113;

// For a frame whose largest finite magnitude has these bits as a float32.
constexpr int HalfExponent(uint32_t largest) {
  constexpr int kMantissaBits = 23;
  constexpr int kBias = 127;
  if (largest == 0) return 0;
  // As it will be rounded to 11 bits, ties to even, so that what is decoded
  // asks for the same exponent.
  const uint32_t rounded = largest + 0xfff + ((largest >> 13) & 1);
  const int exponent = static_cast<int>(rounded >> kMantissaBits) - kBias - 14;
  return std::clamp(exponent, kHalfExponentMin, kHalfExponentMax);
}

// The bits of 2^exponent. REQUIRES: in [-126, 127].
constexpr uint32_t PowerOfTwoBits(int exponent) {
  return static_cast<uint32_t>(exponent + 127) << 23;
}

// Encodes one frame, and returns its exponent; decodes one. `count` values
// each; source and destination do not overlap.
int EncodeFloat16Frame(const float* values, int64_t count, uint16_t* halves);
void DecodeFloat16Frame(const uint16_t* halves, int64_t count, int exponent,
                        float* values);

}  // namespace nereus
