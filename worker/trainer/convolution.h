#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "worker/trainer/layer.h"

namespace nereus {

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
