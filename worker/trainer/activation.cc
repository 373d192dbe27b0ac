#include "worker/trainer/activation.h"

namespace nereus {

void ReluForward(int64_t length, float* values) {
  for (int64_t i = 0; i < length; ++i) {
    // Not std::max(0, value), which would turn NaN into 0.
    values[i] = values[i] < 0.0f ? 0.0f : values[i];
  }
}

void ReluBackward(int64_t length, const float* __restrict values,
                  float* __restrict gradient) {
  for (int64_t i = 0; i < length; ++i) {
    gradient[i] = values[i] > 0.0f ? gradient[i] : 0.0f;
  }
}

}  // namespace nereus
