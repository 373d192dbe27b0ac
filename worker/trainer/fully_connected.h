#pragma once

#include <cstdint>

#include "worker/trainer/layer.h"

namespace nereus {

// output (K x M) = input (K x N) * weight^T + bias, K = images.
//
// Backward computes the input gradient alone: the weight gradient has factors,
// `output_gradient` (K x M) and `input` (K x N), and whoever needs it makes it
// of them with FactorGradient.
class FullyConnected : public Layer {
 public:
  FullyConnected(const ImageShape& input, int64_t outputs)
      : input_(input), outputs_(outputs) {}

  ImageShape input() const override { return input_; }
  ImageShape output() const override { return {1, 1, outputs_}; }
  LayerSpec Spec(int64_t images) const override;
  bool has_factors() const override { return true; }
  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;

 private:
  const ImageShape input_;
  const int64_t outputs_;
};

}  // namespace nereus
