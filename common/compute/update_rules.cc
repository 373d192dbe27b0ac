#include "common/compute/update_rules.h"

#include <bit>
#include <cmath>

namespace nereus {
namespace {

// Returns a number whose highest bit is set exactly if `value` is NaN or
// infinite: the addition carries into it from an exponent of ones.
uint32_t NotFiniteBit(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7f800000) + 0x00800000;
}

bool IsSet(uint32_t bits) { return (bits & 0x80000000) != 0; }

}  // namespace

// The build forbids contraction (-ffp-contract=off), so that vectors and single
// values round alike. The check needs no branch and no second pass.
//
// A velocity that is not finite makes its parameter so.
bool ApplySgd(const SgdStep& step, int64_t length, const float* gradient,
              const float* parameters, float* velocity, float* updated) {
  const auto [gradient_scale, weight_decay, momentum, learning_rate,
              looks_ahead] = step;
  uint32_t not_finite = 0;
  for (int64_t i = 0; i < length; ++i) {
    const float g = gradient_scale * gradient[i] + weight_decay * parameters[i];
    velocity[i] = momentum * velocity[i] + g;
    const float direction =
        looks_ahead ? g + momentum * velocity[i] : velocity[i];
    const float result = parameters[i] - learning_rate * direction;
    updated[i] = result;
    not_finite |= NotFiniteBit(result);
  }
  return !IsSet(not_finite);
}

// A first moment that is not finite makes its parameter so. But an infinite
// second moment stops its parameter for ever, which stays finite.
bool ApplyAdam(const AdamStep& step, int64_t length, const float* gradient,
               const float* parameters, float* first, float* second,
               float* updated) {
  // Stores to the arrays could change `step`, but not this copy.
  const auto [gradient_scale, weight_decay, kept, beta1, beta2, step_size,
              second_scale, epsilon] = step;
  uint32_t not_finite = 0;
  for (int64_t i = 0; i < length; ++i) {
    const float g = gradient_scale * gradient[i] + weight_decay * parameters[i];
    first[i] = beta1 * first[i] + (1.0f - beta1) * g;
    second[i] = beta2 * second[i] + (1.0f - beta2) * g * g;
    const float result =
        kept * parameters[i] -
        step_size * first[i] / (std::sqrt(second[i] * second_scale) + epsilon);
    updated[i] = result;
    not_finite |= NotFiniteBit(result) | NotFiniteBit(second[i]);
  }
  return !IsSet(not_finite);
}

}  // namespace nereus
