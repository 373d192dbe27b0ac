#include "worker/trainer/fully_connected.h"

namespace nereus {
namespace {

LayerSpec SpecOf(const ImageShape& input, int64_t outputs) {
  LayerSpec spec;
  spec.kind = LayerKind::kFullyConnected;
  spec.has_factors = true;
  spec.m = outputs;
  spec.n = input.length();
  spec.parameters = spec.m * spec.n + spec.m;
  spec.rows = 1;
  return spec;
}

}  // namespace

FullyConnected::FullyConnected(Device* device, const ImageShape& input,
                               int64_t outputs)
    : Layer(device, input, {1, 1, outputs}, SpecOf(input, outputs)) {}

void FullyConnected::Forward(int64_t images, const float* input,
                             const float* parameters, float* output) {
  device().Affine(images, m(), n(), input, parameters, output);
}

void FullyConnected::Backward(int64_t images, const float* /*input*/,
                              const float* parameters,
                              const float* output_gradient, float* /*gradient*/,
                              float* input_gradient) {
  if (input_gradient == nullptr) return;
  device().AffineInputGradient(images, m(), n(), output_gradient, parameters,
                               input_gradient);
}

}  // namespace nereus
