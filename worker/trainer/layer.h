#pragma once

#include <cstdint>
#include <utility>

#include "common/plan/layer_spec.h"
#include "worker/trainer/device.h"
#include "worker/trainer/image_shape.h"

namespace nereus {

// Layer of a network: arithmetic on its caller's buffers, by the calls of a
// device. A layer owns no parameters, so the caller decides where they live.
// Thread-compatible.
//
// All buffers are float32, row-major, in the device's memory, and not kept
// after the call:
//
//   input, input_gradient     {images, input().length()}
//   output, output_gradient   {images, output().length()}
//   parameters, gradient      {Spec().parameters}: the weight, M x N, then the
//                             bias, M (see LayerSpec)
class Layer {
 public:
  virtual ~Layer() = default;

  const ImageShape& input() const { return input_; }
  const ImageShape& output() const { return output_; }

  // Returns the layer's description for a client, for steps of `images` images.
  // Its name is empty. For a layer without parameters, `parameters` is 0.
  LayerSpec Spec(int64_t images) const {
    LayerSpec spec = spec_;
    spec.rows *= images;
    return spec;
  }

  // True if `output_gradient` and `input` are the factors of the gradient (see
  // FactorGradient). Backward then does not write `gradient`.
  bool has_factors() const { return spec_.has_factors; }

  // Writes `output`.
  virtual void Forward(int64_t images, const float* input,
                       const float* parameters, float* output) = 0;

  // Writes `gradient` (unless has_factors()) and `input_gradient` (unless it is
  // null). Gradients are sums over the images: `output_gradient` is already
  // divided by the number of images. REQUIRES: `images` and `input` are those
  // of the last Forward, and Backward has not been called since.
  virtual void Backward(int64_t images, const float* input,
                        const float* parameters, const float* output_gradient,
                        float* gradient, float* input_gradient) = 0;

 protected:
  // `device`: not owned; must outlive the layer. `spec`: for one image.
  Layer(Device* device, const ImageShape& input, const ImageShape& output,
        LayerSpec spec)
      : device_(*device),
        input_(input),
        output_(output),
        spec_(std::move(spec)) {}

  // Device, and sizes of the weight.
  Device& device() const { return device_; }
  int64_t m() const { return spec_.m; }
  int64_t n() const { return spec_.n; }

 private:
  Device& device_;  // Not owned.
  const ImageShape input_;
  const ImageShape output_;
  const LayerSpec spec_;  // For steps of one image.
};

}  // namespace nereus
