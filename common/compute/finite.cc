#include "common/compute/finite.h"

#include <algorithm>
#include <bit>

namespace nereus {
namespace {

constexpr uint32_t kExponent = 0x7f800000;

bool IsFinite(float value) {
  return (std::bit_cast<uint32_t>(value) & kExponent) != kExponent;
}

// Without a branch per value, so that compilers use vectors. The sum of a bit
// and the exponent's mask carries into the sign's place if all bits are set.
bool AllFinite(const float* values, size_t count) {
  uint32_t carries = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]) & kExponent;
    carries |= bits + 0x00800000;
  }
  return (carries & 0x80000000) == 0;
}

}  // namespace

int64_t FindNotFinite(const float* values, size_t count) {
  constexpr size_t kBlock = 4096;
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t length = std::min(kBlock, count - start);
    if (AllFinite(values + start, length)) continue;
    for (size_t i = start; i < start + length; ++i) {
      if (!IsFinite(values[i])) return static_cast<int64_t>(i);
    }
  }
  return -1;
}

}  // namespace nereus
