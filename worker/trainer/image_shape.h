#pragma once

#include <cstdint>

namespace nereus {

// Shape of one image, or of one layer's output for one image. Values lie row by
// row, pixel by pixel, with the channels of a pixel side by side (NHWC). A
// batch is float32 of shape {images, height, width, channels}.
struct ImageShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 1;

  // Number of values.
  constexpr int64_t length() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

// Shape of a square convolution of stride 1 without padding.
struct ConvolutionShape {
  ImageShape input;
  int64_t output_channels = 0;
  int64_t kernel = 0;  // Height and width of the kernel, in pixels.

  // Returns {height - kernel + 1, width - kernel + 1, output_channels}.
  constexpr ImageShape output() const {
    return {input.height - kernel + 1, input.width - kernel + 1,
            output_channels};
  }

  // Number of output positions of one image.
  constexpr int64_t positions() const {
    return output().height * output().width;
  }

  // Number of inputs of one output position: kernel * kernel * channels, in the
  // order {kernel row, kernel column, channel}.
  constexpr int64_t patch_length() const {
    return kernel * kernel * input.channels;
  }
};

}  // namespace nereus
