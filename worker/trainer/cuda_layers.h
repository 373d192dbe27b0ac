#pragma once

#include <cstdint>

#include "worker/trainer/convolution.h"
#include "worker/trainer/cuda_device.h"
#include "worker/trainer/fully_connected.h"
#include "worker/trainer/layer.h"
#include "worker/trainer/pooling.h"

namespace nereus {

// Convolution, FullyConnected and MaxPooling on a GPU, which outlives them:
// shapes and all are those of the layers on the CPU, buffers are the device's.

class CudaConvolution final : public Layer {
 public:
  // `patches`, and `patch_gradients`: {images_max * positions, patch length}.
  CudaConvolution(CudaDevice* device, const ConvolutionShape& shape,
                  FloatArray patches, FloatArray patch_gradients)
      : device_(*device),
        shape_(shape),
        patches_(std::move(patches)),
        patch_gradients_(std::move(patch_gradients)) {}

  ImageShape input() const override { return shape_.input; }
  ImageShape output() const override { return shape_.output(); }
  LayerSpec Spec(int64_t images) const override {
    return ConvolutionSpec(shape_, images);
  }
  bool has_factors() const override { return false; }
  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;

 private:
  CudaDevice& device_;
  const ConvolutionShape shape_;
  const FloatArray patches_;
  const FloatArray patch_gradients_;
};

class CudaFullyConnected final : public FullyConnected {
 public:
  CudaFullyConnected(CudaDevice* device, const ImageShape& input,
                     int64_t outputs)
      : FullyConnected(input, outputs), device_(*device) {}

  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;

 private:
  CudaDevice& device_;
};

class CudaMaxPooling final : public MaxPooling {
 public:
  CudaMaxPooling(CudaDevice* device, const ImageShape& input)
      : MaxPooling(input), device_(*device) {}

  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;

 private:
  CudaDevice& device_;
};

}  // namespace nereus
