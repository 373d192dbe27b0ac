#include "worker/trainer/pooling.h"

#include <algorithm>

namespace nereus {
namespace {

// Returns the larger value, or a NaN if one of the two is one. std::max returns
// a reference, which keeps the compiler from vectorising the loop.
inline float Larger(float a, float b) { return a > b || a != a ? a : b; }

// Pools one window, for all its channels. The four pixels of the window are
// `length` floats each, at a and b (first row) and at c and d (second row).
void PoolWindow(int64_t length, const float* __restrict a,
                const float* __restrict b, const float* __restrict c,
                const float* __restrict d, float* __restrict output) {
  for (int64_t i = 0; i < length; ++i) {
    output[i] = Larger(Larger(a[i], b[i]), Larger(c[i], d[i]));
  }
}

// Writes the gradients of the four pixels of one window. Searches for the
// maximum again, because that takes less time than to store its place in
// Forward.
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

// Calls visit(offset of the window's first pixel) for each window, in the order
// of the outputs.
template <typename Visit>
void ForEachWindow(const ImageShape& shape, int64_t images, Visit visit) {
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t y = 0; y < shape.height / 2; ++y) {
      for (int64_t x = 0; x < shape.width / 2; ++x) {
        visit(image * shape.length() +
              (2 * y * shape.width + 2 * x) * shape.channels);
      }
    }
  }
}

}  // namespace

void MaxPoolForward(const ImageShape& shape, int64_t images, const float* input,
                    float* output) {
  const int64_t channels = shape.channels;
  const int64_t row_length = shape.width * channels;
  ForEachWindow(shape, images, [&](int64_t offset) {
    const float* a = input + offset;
    PoolWindow(channels, a, a + channels, a + row_length,
               a + row_length + channels, output);
    output += channels;
  });
}

void MaxPoolBackward(const ImageShape& shape, int64_t images,
                     const float* input, const float* output_gradient,
                     float* input_gradient) {
  // The windows cover everything but an odd last row and column.
  if (shape.height % 2 != 0 || shape.width % 2 != 0) {
    std::fill_n(input_gradient, images * shape.length(), 0.0f);
  }
  ForEachWindow(shape, images, [&](int64_t offset) {
    UnpoolWindow(shape.channels, input + offset, shape.width * shape.channels,
                 output_gradient, input_gradient + offset);
    output_gradient += shape.channels;
  });
}

namespace {

LayerSpec NothingToSynchronise() {
  LayerSpec spec;
  spec.rows = 1;
  return spec;
}

}  // namespace

MaxPooling::MaxPooling(Device* device, const ImageShape& input)
    : Layer(device, input, {input.height / 2, input.width / 2, input.channels},
            NothingToSynchronise()) {}

void MaxPooling::Forward(int64_t images, const float* input,
                         const float* /*parameters*/, float* output) {
  device().MaxPoolForward(this->input(), images, input, output);
}

void MaxPooling::Backward(int64_t images, const float* input,
                          const float* /*parameters*/,
                          const float* output_gradient, float* /*gradient*/,
                          float* input_gradient) {
  if (input_gradient == nullptr) return;
  device().MaxPoolBackward(this->input(), images, input, output_gradient,
                           input_gradient);
}

}  // namespace nereus
