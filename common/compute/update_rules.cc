#include "common/compute/update_rules.h"

#include <cmath>

namespace nereus {

// The build forbids contraction (-ffp-contract=off), so that vectors and single
// values round alike.
void ApplySgd(const SgdStep& step, int64_t length, const float* gradient,
              const float* parameters, float* velocity, float* updated) {
  const auto [gradient_scale, weight_decay, momentum, learning_rate] = step;
  for (int64_t i = 0; i < length; ++i) {
    const float g = gradient_scale * gradient[i] + weight_decay * parameters[i];
    velocity[i] = momentum * velocity[i] + g;
    updated[i] = parameters[i] - learning_rate * velocity[i];
  }
}

void ApplyAdam(const AdamStep& step, int64_t length, const float* gradient,
               const float* parameters, float* first, float* second,
               float* updated) {
  for (int64_t i = 0; i < length; ++i) {
    const float g =
        step.gradient_scale * gradient[i] + step.weight_decay * parameters[i];
    first[i] = step.beta1 * first[i] + (1.0f - step.beta1) * g;
    second[i] = step.beta2 * second[i] + (1.0f - step.beta2) * g * g;
    updated[i] = parameters[i] -
                 step.step_size * first[i] /
                     (std::sqrt(second[i] * step.second_scale) + step.epsilon);
  }
}

}  // namespace nereus
