#pragma once

#include <cstdint>

namespace nereus {

// Update of each parameter in one step of an optimizer, all in float32:
//
//   g = gradient_scale * gradient + weight_decay * parameter
//
//   sgd:   v = momentum * v + g
//          updated = parameter - learning_rate * v
//   sgd that looks ahead:
//          updated = parameter - learning_rate * (g + momentum * v)
//   adam:  m = beta1 * m + (1 - beta1) * g
//          v = beta2 * v + (1 - beta2) * g * g
//          updated = kept * parameter -
//                    step_size * m / (sqrt(v * second_scale) + epsilon)
//
// nesterov is sgd that looks ahead: Sutskever et al., ICML 2013, as PyTorch
// writes it. adam is Kingma and Ba, ICLR 2015, algorithm 1, with the two bias
// corrections folded into step_size and second_scale. adamw is Loshchilov and
// Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2, as
// PyTorch writes it: weight_decay is 0, and kept is 1 - learning_rate * weight
// decay.
//
// Each element depends on no other element, and is computed without fused
// multiply-adds (contraction). So the same inputs give the same bits on every
// machine, and for every way of cutting a layer into chunks and frames.

// Least magnitude of a gradient's value that counts as too large, 2^96 (8e28):
// the sum of such values could overflow, and then all replicas would have a
// model of infinities. Below it, 2^31 contributions have a finite sum.
inline constexpr float kTooLarge = 0x1p96f;

// Constants of one step of sgd.
struct SgdStep {
  float gradient_scale = 1.0f;  // Times the gradient: the mean gradient.
  float weight_decay = 0.0f;    // Factor of the parameter in g.
  float momentum = 0.0f;        // Share of the velocity that stays.
  float learning_rate = 0.0f;   // Step size.
  bool looks_ahead = false;     // True: the step is that of nesterov.
};

// Constants of one step of adam. t is the number of this update; the first
// update has t = 1.
struct AdamStep {
  float gradient_scale = 1.0f;  // Times the gradient: the mean gradient.
  float weight_decay = 0.0f;    // Factor of the parameter in g.
  float kept = 1.0f;            // Share of the parameter that stays.
  float beta1 = 0.0f;           // Decay of the first moment.
  float beta2 = 0.0f;           // Decay of the second moment.
  float step_size = 0.0f;       // learning_rate / (1 - beta1^t).
  float second_scale = 0.0f;    // 1 / (1 - beta2^t).
  float epsilon = 0.0f;         // Added to the divisor.
};

// Applies one step. All arrays have shape {length} and are in host memory.
// `velocity` is v of sgd; `first` and `second` are m and v of adam; they are
// read and written. `updated` may be `parameters`; no other arrays overlap.
// Returns true if all parameters and all state are finite afterwards.
bool ApplySgd(const SgdStep& step, int64_t length, const float* gradient,
              const float* parameters, float* velocity, float* updated);
bool ApplyAdam(const AdamStep& step, int64_t length, const float* gradient,
               const float* parameters, float* first, float* second,
               float* updated);

}  // namespace nereus
