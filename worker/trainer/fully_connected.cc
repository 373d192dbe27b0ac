#include "worker/trainer/fully_connected.h"

#include <algorithm>

#include "common/compute/gemm.h"

namespace nereus {

LayerSpec FullyConnected::Spec(int64_t images) const {
  LayerSpec spec;
  spec.kind = LayerKind::kFullyConnected;
  spec.has_factors = true;
  spec.m = outputs_;
  spec.n = input_.length();
  spec.parameters = spec.m * spec.n + spec.m;
  spec.rows = images;
  return spec;
}

void FullyConnected::Forward(int64_t images, const float* input,
                             const float* parameters, float* output) {
  const int64_t n = input_.length();
  const float* bias = parameters + outputs_ * n;
  for (int64_t row = 0; row < images; ++row) {
    std::copy_n(bias, outputs_, output + row * outputs_);
  }
  Gemm(Transpose::kNo, Transpose::kYes, images, outputs_, n, 1.0f, input,
       parameters, 1.0f, output);
}

void FullyConnected::Backward(int64_t images, const float* /*input*/,
                              const float* parameters,
                              const float* output_gradient, float* /*gradient*/,
                              float* input_gradient) {
  if (input_gradient == nullptr) return;
  Gemm(Transpose::kNo, Transpose::kNo, images, input_.length(), outputs_, 1.0f,
       output_gradient, parameters, 0.0f, input_gradient);
}

}  // namespace nereus
