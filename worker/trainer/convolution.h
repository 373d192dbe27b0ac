#pragma once

#include <cstdint>
#include <vector>

#include "worker/trainer/layer.h"

namespace nereus {

// A square convolution of stride 1. `padding` zeros surround the input on each
// side.
struct ConvolutionShape {
  ImageShape input;
  int64_t output_channels = 0;
  int64_t kernel = 0;  // Height and width.
  int64_t padding = 0;

  // {height + 2 * padding - kernel + 1, same of width, output_channels}
  ImageShape output() const;

  // Inputs of one output: kernel * kernel * input.channels, in the order
  // {kernel row, kernel column, channel}.
  int64_t patch_length() const;
};

// Layer::Spec of such a layer.
LayerSpec ConvolutionSpec(const ConvolutionShape& shape, int64_t images);

// Writes the inputs of each output position of `images` images beside each
// other: patches {images * output height * output width, patch_length}. With
// them, a convolution is a fully connected layer over positions.
void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                     const float* input, float* patches);

// The transpose of ImagesToPatches: adds up, for each input element, what its
// copies in `patches` hold. Overwrites `input`.
void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                     const float* patches, float* input);

// output = weight * patch + bias at every position; the weight is
// M = output_channels times N = patch_length. Keeps the patches of a batch
// between Forward and Backward.
class Convolution : public Layer {
 public:
  // `images_max`: most images of one call. REQUIRES: an output of one position
  // at least.
  Convolution(const ConvolutionShape& shape, int64_t images_max);

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
  const ConvolutionShape shape_;
  const int64_t positions_;  // Of one image's output.
  std::vector<float> patches_;
  std::vector<float>
      patch_gradients_;  // Made by the first Backward to need it.
};

}  // namespace nereus
