#pragma once

#include <cstdint>
#include <limits>

namespace nereus {

// Integer of 128 bits, for the formulas of common/plan: a hostile model would
// overflow 64 bits. For layers and clusters within their limits, all products
// and sums of these formulas fit into it.
using WideInteger = __int128;

// Returns `value`, or the nearest int64_t if it does not fit.
inline int64_t SaturateToInt64(WideInteger value) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  if (value > kMax) return kMax;
  if (value < kMin) return kMin;
  return static_cast<int64_t>(value);
}

}  // namespace nereus
