#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/status.h"
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

// Returns the mean over the rows of -log(softmax(logits[row])[labels[row]]). A
// logit that is NaN or plus infinity makes the mean NaN. Minus infinity at the
// label makes the mean infinite; at another class it adds nothing.
//
//   logits    float32, shape {rows, classes}
//   labels    {rows}, each in [0, classes)
//   gradient  gradient of the mean with respect to the logits: float32,
//             shape {rows, classes}; may be `logits` itself
//
// The function adds up each softmax, and the rows, in double and in order.
float SoftmaxCrossEntropy(int64_t rows, int64_t classes, const float* logits,
                          const int32_t* labels, float* gradient);

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

// Replaces each value by max(value, 0), in place; NaN stays NaN. float32, host
// memory.
void ReluForward(int64_t length, float* values);

// Sets gradient[i] to 0, in place, where values[i] is 0 or NaN. `values`: the
// result of ReluForward.
void ReluBackward(int64_t length, const float* values, float* gradient);

// Copies the inputs of each output position of `images` images to one row of
// `patches`, of shape {images * shape.positions(), shape.patch_length()}. On
// patches, a convolution is a fully connected layer with a row per position.
// float32, host memory.
void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                     const float* input, float* patches);

// Writes to each element of `input` the sum of its copies in `patches`: the
// transpose of ImagesToPatches. float32, host memory.
void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                     const float* patches, float* input);

// Convolutional layer: output = weight * patch + bias at every position. The
// weight is M = output_channels times N = patch_length.
//
// Uses device memory for the patches of `images_max` images: `patch_length`
// values per output position. Backward reuses this memory for the gradients of
// the patches.
class Convolution final : public Layer {
 public:
  // `images_max`: largest number of images of one Forward or Backward.
  // REQUIRES: the kernel fits into the image. Errors: those of
  // Device::Allocate.
  static absl::StatusOr<std::unique_ptr<Layer>> Create(
      Device* device, const ConvolutionShape& shape, int64_t images_max);

  void Forward(int64_t images, const float* input, const float* parameters,
               float* output) override;
  void Backward(int64_t images, const float* input, const float* parameters,
                const float* output_gradient, float* gradient,
                float* input_gradient) override;

 private:
  Convolution(Device* device, const ConvolutionShape& shape,
              FloatArray patches);

  const ConvolutionShape shape_;
  const FloatArray patches_;  // Patches of the last Forward.
};

}  // namespace nereus
