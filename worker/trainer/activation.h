#pragma once

#include <cstdint>

namespace nereus {

// values[i] = max(values[i], 0), in place; NaN stays NaN. float32, host memory.
void ReluForward(int64_t length, float* values);

// gradient[i] = 0 where ReluForward's result `values` is 0, in place.
void ReluBackward(int64_t length, const float* values, float* gradient);

}  // namespace nereus
