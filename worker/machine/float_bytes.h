#pragma once

#include <cstdint>

namespace nereus {

// Bytes of `elements` values of float32, which is what machines compute with.
constexpr int64_t FloatBytes(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace nereus
