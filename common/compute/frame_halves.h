#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace nereus {

// fp16 with one exponent for each frame. Encoding divides a frame's values by
// 2^exponent, so that the frame's largest magnitude, rounded, comes into [2^14,
// 2^15). Then no finite value becomes infinite, except a value next to
// float32's largest number. The absolute error of small values is at most about
// 2^-39 of the largest magnitude. (If no magnitude of the frame is above 2^-98,
// the exponent is at its minimum, and the error is a larger part of the largest
// magnitude.) Without the exponent, fp16 would turn gradients below 2^-25 into
// zeros.

// Range of a frame's exponent (FrameHeader::exponent). In this range,
// 2^exponent and 2^-exponent are normal float32 numbers. So scaling is exact,
// except for values that are encoded as 0 in any case.
inline constexpr int kHalfExponentMin = -112;
inline constexpr int kHalfExponentMax = 113;

// Returns the exponent of a frame. `largest`: the largest finite magnitude in
// the frame, as the bits of a float32.
constexpr int HalfExponent(uint32_t largest) {
  constexpr int kMantissaBits = 23;
  constexpr int kBias = 127;
  if (largest == 0) return 0;
  // Rounds the magnitude to 11 bits, ties to even, as the encoding does. So
  // values that were decoded from a frame get the frame's exponent again, and
  // encoding them once more changes nothing.
  const uint32_t rounded = largest + 0xfff + ((largest >> 13) & 1);
  const int exponent = static_cast<int>(rounded >> kMantissaBits) - kBias - 14;
  return std::clamp(exponent, kHalfExponentMin, kHalfExponentMax);
}

// Returns the bits of the float32 2^exponent. REQUIRES: exponent in [-126,
// 127].
constexpr uint32_t PowerOfTwoBits(int exponent) {
  return static_cast<uint32_t>(exponent + 127) << 23;
}

// Encodes the `count` values of a frame, and returns the frame's exponent.
// Source and destination do not overlap.
int EncodeFloat16Frame(const float* values, int64_t count, uint16_t* halves);
// Decodes the `count` values of a frame. Source and destination do not overlap.
void DecodeFloat16Frame(const uint16_t* halves, int64_t count, int exponent,
                        float* values);

}  // namespace nereus
