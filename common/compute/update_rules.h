#pragma once

#include <cstdint>

namespace nereus {

// What an optimizer does in one step to every parameter, all float32:
//
//   g = gradient_scale * gradient + weight_decay * parameter
//
//   sgd:   v = momentum * v + g
//          updated = parameter - learning_rate * v
//   adam:  m = beta1 * m + (1 - beta1) * g
//          v = beta2 * v + (1 - beta2) * g * g
//          updated = parameter -
//                    step_size * m / (sqrt(v * second_scale) + epsilon)
//
// adam is Kingma and Ba, ICLR 2015, algorithm 1, with its corrections folded
// into two factors, as its section 2 suggests.
//
// Element by element and without contraction: the same inputs give the same
// bits on every machine and for every way of cutting a layer into pieces.

struct SgdStep {
  float gradient_scale = 1.0f;
  float weight_decay = 0.0f;
  float momentum = 0.0f;
  float learning_rate = 0.0f;
};

struct AdamStep {
  float gradient_scale = 1.0f;
  float weight_decay = 0.0f;
  float beta1 = 0.0f;
  float beta2 = 0.0f;
  float step_size = 0.0f;     // learning_rate / (1 - beta1^t)
  float second_scale = 0.0f;  // 1 / (1 - beta2^t)
  float epsilon = 0.0f;
};

// All arrays {length}. `updated` may be `parameters`; no others overlap.
void ApplySgd(const SgdStep& step, int64_t length, const float* gradient,
              const float* parameters, float* velocity, float* updated);
void ApplyAdam(const AdamStep& step, int64_t length, const float* gradient,
               const float* parameters, float* first, float* second,
               float* updated);

}  // namespace nereus
