#include "worker/trainer/pooling.h"

#include <algorithm>

namespace nereus {
namespace {

// As `a > b ? a : b`, which is one instruction; std::max returns a reference,
// which keeps the loop from being vectorised.
inline float Larger(float a, float b) { return a > b ? a : b; }

// One window for all its channels. The windows' four pixels are `length` floats
// at a, b (first row), c and d (second row).
void PoolWindow(int64_t length, const float* __restrict a,
                const float* __restrict b, const float* __restrict c,
                const float* __restrict d, float* __restrict output) {
  for (int64_t i = 0; i < length; ++i) {
    output[i] = Larger(Larger(a[i], b[i]), Larger(c[i], d[i]));
  }
}

// Adds the gradient of one window to the gradients of its four pixels. Looks
// for the maximum again, which costs less than remembering where it was.
void UnpoolWindow(int64_t length, const float* __restrict input,
                  int64_t row_length, const float* __restrict output_gradient,
                  float* __restrict input_gradient) {
  const int64_t b = length;
  const int64_t c = row_length;
  const int64_t d = row_length + length;
  for (int64_t i = 0; i < length; ++i) {
    const float g = output_gradient[i];
    const float top = Larger(input[i], input[b + i]);
    const float bottom = Larger(input[c + i], input[d + i]);
    const float to_top = top >= bottom ? g : 0.0f;
    const float to_bottom = top >= bottom ? 0.0f : g;
    const bool top_left = input[i] >= input[b + i];
    const bool bottom_left = input[c + i] >= input[d + i];
    input_gradient[i] = top_left ? to_top : 0.0f;
    input_gradient[b + i] = top_left ? 0.0f : to_top;
    input_gradient[c + i] = bottom_left ? to_bottom : 0.0f;
    input_gradient[d + i] = bottom_left ? 0.0f : to_bottom;
  }
}

}  // namespace

LayerSpec MaxPooling::Spec(int64_t images) const {
  LayerSpec spec;
  spec.rows = images;
  return spec;
}

void MaxPooling::Forward(int64_t images, const float* input,
                         const float* /*parameters*/, float* output) {
  const ImageShape out = this->output();
  const int64_t channels = input_.channels;
  const int64_t row_length = input_.width * channels;
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t y = 0; y < out.height; ++y) {
      for (int64_t x = 0; x < out.width; ++x) {
        const float* a = input + 2 * y * row_length + 2 * x * channels;
        PoolWindow(channels, a, a + channels, a + row_length,
                   a + row_length + channels, output);
        output += channels;
      }
    }
    input += input_.length();
  }
}

void MaxPooling::Backward(int64_t images, const float* input,
                          const float* /*parameters*/,
                          const float* output_gradient, float* /*gradient*/,
                          float* input_gradient) {
  if (input_gradient == nullptr) return;
  const ImageShape out = this->output();
  const int64_t channels = input_.channels;
  const int64_t row_length = input_.width * channels;
  // The windows cover everything but an odd last row and column.
  if (input_.height % 2 != 0 || input_.width % 2 != 0) {
    std::fill_n(input_gradient, images * input_.length(), 0.0f);
  }
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t y = 0; y < out.height; ++y) {
      for (int64_t x = 0; x < out.width; ++x) {
        const int64_t a = 2 * y * row_length + 2 * x * channels;
        UnpoolWindow(channels, input + a, row_length, output_gradient,
                     input_gradient + a);
        output_gradient += channels;
      }
    }
    input += input_.length();
    input_gradient += input_.length();
  }
}

}  // namespace nereus
