#pragma once

#include <cstdint>

namespace nereus {

// Replaces each value by max(value, 0), in place; NaN stays NaN. float32, host
// memory.
void ReluForward(int64_t length, float* values);

// Sets gradient[i] to 0, in place, where values[i] is 0 or NaN. `values`: the
// result of ReluForward.
void ReluBackward(int64_t length, const float* values, float* gradient);

}  // namespace nereus
