#pragma once

#include <cstdint>

#include "worker/trainer/layer.h"

namespace nereus {

// Fully connected layer: output (K x M) = input (K x N) * weight^T + bias, with
// a row per image.
//
// Backward computes the input gradient only. The weight gradient has factors,
// `output_gradient` (K x M) and `input` (K x N): the client multiplies the
// factors if the plan needs the product.
class FullyConnected final : public Layer {
 public:
  FullyConnected(Device* device, const ImageShape& input, int64_t outputs);

  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;
};

}  // namespace nereus
