#include "worker/trainer/cuda_layers.h"

#include "worker/trainer/layers_cuda.h"

namespace nereus {
namespace {

PatchGeometry GeometryOf(const ConvolutionShape& shape, int64_t images) {
  return {
      images,       shape.input.height, shape.input.width, shape.input.channels,
      shape.kernel, shape.padding};
}

// output = input * weight^T + bias
void MultiplyByWeight(CudaDevice& device, int64_t rows, int64_t m, int64_t n,
                      const float* input, const float* parameters,
                      float* output) {
  device.Multiply(Transpose::kNo, Transpose::kYes, rows, m, n, input,
                  parameters, output);
  device.Note(AddBiasCuda(rows, m, parameters + m * n, output, device.stream()),
              "AddBiasCuda");
}

}  // namespace

void CudaConvolution::Forward(int64_t images, const float* input,
                              const float* parameters, float* output) {
  const LayerSpec spec = Spec(images);
  device_.Note(ImagesToPatchesCuda(GeometryOf(shape_, images), input,
                                   patches_.data(), device_.stream()),
               "ImagesToPatchesCuda");
  MultiplyByWeight(device_, spec.rows, spec.m, spec.n, patches_.data(),
                   parameters, output);
}

void CudaConvolution::Backward(int64_t images, const float* /*input*/,
                               const float* parameters,
                               const float* output_gradient, float* gradient,
                               float* input_gradient) {
  const LayerSpec spec = Spec(images);
  device_.MultiplyFactors(spec.rows, spec.m, spec.n, output_gradient,
                          patches_.data(), gradient);
  if (input_gradient == nullptr) return;
  device_.Multiply(Transpose::kNo, Transpose::kNo, spec.rows, spec.n, spec.m,
                   output_gradient, parameters, patch_gradients_.data());
  device_.Note(
      PatchesToImagesCuda(GeometryOf(shape_, images), patch_gradients_.data(),
                          input_gradient, device_.stream()),
      "PatchesToImagesCuda");
}

void CudaFullyConnected::Forward(int64_t images, const float* input,
                                 const float* parameters, float* output) {
  const LayerSpec spec = Spec(images);
  MultiplyByWeight(device_, images, spec.m, spec.n, input, parameters, output);
}

void CudaFullyConnected::Backward(int64_t images, const float* /*input*/,
                                  const float* parameters,
                                  const float* output_gradient,
                                  float* /*gradient*/, float* input_gradient) {
  if (input_gradient == nullptr) return;
  const LayerSpec spec = Spec(images);
  device_.Multiply(Transpose::kNo, Transpose::kNo, images, spec.n, spec.m,
                   output_gradient, parameters, input_gradient);
}

void CudaMaxPooling::Forward(int64_t images, const float* input,
                             const float* /*parameters*/, float* output) {
  const ImageShape in = this->input();
  device_.Note(MaxPoolForwardCuda(images, in.height, in.width, in.channels,
                                  input, output, device_.stream()),
               "MaxPoolForwardCuda");
}

void CudaMaxPooling::Backward(int64_t images, const float* input,
                              const float* /*parameters*/,
                              const float* output_gradient, float* /*gradient*/,
                              float* input_gradient) {
  if (input_gradient == nullptr) return;
  const ImageShape in = this->input();
  device_.Note(
      MaxPoolBackwardCuda(images, in.height, in.width, in.channels, input,
                          output_gradient, input_gradient, device_.stream()),
      "MaxPoolBackwardCuda");
}

}  // namespace nereus
