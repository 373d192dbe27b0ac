#pragma once

#include <cstdint>

namespace nereus {

// Update of each parameter in one step of an optimizer, all in float32:
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
// adam is Kingma and Ba, ICLR 2015, algorithm 1, with the two bias corrections
// folded into step_size and second_scale.
//
// Each element is computed by itself and without contraction (no fused
// multiply-add): the same inputs give the same bits on every machine, and for
// every way of cutting a layer into chunks and frames.

// Constants of one step of sgd.
struct SgdStep {
  float gradient_scale = 1.0f;  // Factor that makes the mean gradient.
  float weight_decay = 0.0f;    // Factor of the parameter.
  float momentum = 0.0f;        // Share of the velocity that stays.
  float learning_rate = 0.0f;   // Step size.
};

// Constants of one step of adam; t is the number of this update, from 1.
struct AdamStep {
  float gradient_scale = 1.0f;  // Factor that makes the mean gradient.
  float weight_decay = 0.0f;    // Factor of the parameter.
  float beta1 = 0.0f;           // Decay of the first moment.
  float beta2 = 0.0f;           // Decay of the second moment.
  float step_size = 0.0f;       // learning_rate / (1 - beta1^t).
  float second_scale = 0.0f;    // 1 / (1 - beta2^t).
  float epsilon = 0.0f;         // Added to the divisor.
};

// Applies one step. All arrays {length}, host memory; `velocity`, `first` and
// `second` are read and written. `updated` may be `parameters`; no other arrays
// overlap.
void ApplySgd(const SgdStep& step, int64_t length, const float* gradient,
              const float* parameters, float* velocity, float* updated);
void ApplyAdam(const AdamStep& step, int64_t length, const float* gradient,
               const float* parameters, float* first, float* second,
               float* updated);

}  // namespace nereus
