#pragma once

#include <cstdint>

#include "worker/trainer/layer.h"

namespace nereus {

// The maximum of each 2 x 2 window, stride 2, channel by channel. An odd last
// row or column belongs to no window. The gradient goes to the first maximum of
// a window, row by row. Has no parameters.
class MaxPooling : public Layer {
 public:
  explicit MaxPooling(const ImageShape& input) : input_(input) {}

  ImageShape input() const override { return input_; }
  ImageShape output() const override {
    return {input_.height / 2, input_.width / 2, input_.channels};
  }
  LayerSpec Spec(int64_t images) const override;
  bool has_factors() const override { return false; }
  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;

 private:
  const ImageShape input_;
};

}  // namespace nereus
