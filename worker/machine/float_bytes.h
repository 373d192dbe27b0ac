#pragma once

#include <cstdint>

namespace nereus {

// Returns the bytes of `elements` float32 values. Machines compute with float32
// only.
constexpr int64_t FloatBytes(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace nereus
