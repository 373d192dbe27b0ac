#pragma once

#include <cstdint>

#include "worker/trainer/layer.h"

namespace nereus {

// Writes the maximum of each 2 x 2 window of each image, stride 2, channel by
// channel. If the height or width is odd, the last row or column belongs to no
// window. `shape` is the input's; float32, host memory.
void MaxPoolForward(const ImageShape& shape, int64_t images, const float* input,
                    float* output);

// Writes the gradient of MaxPoolForward with respect to its input. The gradient
// of a window goes to its first maximum, in row order; all other inputs get 0.
void MaxPoolBackward(const ImageShape& shape, int64_t images,
                     const float* input, const float* output_gradient,
                     float* input_gradient);

// Pooling layer, without parameters.
class MaxPooling final : public Layer {
 public:
  MaxPooling(Device* device, const ImageShape& input);

  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;
};

}  // namespace nereus
