#pragma once

#include <cstdint>

#include "common/plan/layer_spec.h"

namespace nereus {

// The shape of one image, or of one layer's output for one image. In memory row
// by row, pixel by pixel, the channels of a pixel beside each other (NHWC):
// float32, shape {images, height, width, channels}.
struct ImageShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 1;

  int64_t length() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

// One layer of a network: pure arithmetic on its caller's buffers. Thread-
// compatible.
//
// All buffers are float32, row-major, the memory of its device (device.h), not
// kept after the call:
//   input, input_gradient     {images, input().length()}
//   output, output_gradient   {images, output().length()}
//   parameters, gradient      {parameter_count()}: the weight, row-major M x N,
//                             then the bias, M (see LayerSpec)
class Layer {
 public:
  virtual ~Layer() = default;

  virtual ImageShape input() const = 0;
  virtual ImageShape output() const = 0;

  // How the layer is synchronised, for `images` images a step and without a
  // name. Of a layer without parameters, `parameters` is 0.
  virtual LayerSpec Spec(int64_t images) const = 0;

  // True if Backward leaves `gradient` alone, because `output_gradient` and
  // `input` are the factors of it (see FactorGradient).
  virtual bool has_factors() const = 0;

  // Overwrites `output`.
  virtual void Forward(int64_t images, const float* input,
                       const float* parameters, float* output) = 0;

  // Overwrites `gradient` (unless has_factors()) and `input_gradient`, which
  // may be null: then it isn't computed. Sums over the images: the mean is in
  // `output_gradient` already. REQUIRES: `images` and `input` are those of the
  // last Forward.
  virtual void Backward(int64_t images, const float* input,
                        const float* parameters, const float* output_gradient,
                        float* gradient, float* input_gradient) = 0;
};

}  // namespace nereus
