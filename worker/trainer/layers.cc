#include "worker/trainer/layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {

namespace {

// Copies `rows` rows of `length` floats from an image to a patch. In the image,
// the begins of the rows are `stride` floats apart. kLength: `length`, or 0 if
// the compiler does not know the length. With a known length the compiler makes
// two instructions of each copy instead of a call, and the patches of the first
// layer are made twice as fast.
template <int64_t kLength>
void CopyRows(int64_t rows, int64_t length, int64_t stride, const float* image,
              float* patch) {
  if (kLength != 0) length = kLength;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(patch + row * length, image + row * stride,
                length * sizeof(float));
  }
}

// Calls visit(offset) for each output position of `images` images, in the order
// of the patches. `offset`: index, in the images, of the patch's first value.
template <typename Visit>
void ForEachPosition(const ConvolutionShape& shape, int64_t images,
                     Visit visit) {
  const ImageShape output = shape.output();
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t y = 0; y < output.height; ++y) {
      for (int64_t x = 0; x < output.width; ++x) {
        visit(image * shape.input.length() +
              (y * shape.input.width + x) * shape.input.channels);
      }
    }
  }
}

LayerSpec SpecOf(const ConvolutionShape& shape) {
  LayerSpec spec;
  spec.kind = LayerKind::kConvolution;
  spec.m = shape.output_channels;
  spec.n = shape.patch_length();
  spec.parameters = spec.m * spec.n + spec.m;
  spec.rows = shape.positions();
  return spec;
}

}  // namespace

void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                     const float* input, float* patches) {
  const int64_t length = shape.kernel * shape.input.channels;
  const int64_t stride = shape.input.width * shape.input.channels;
  // A length of 5 is that of a 5 x 5 kernel on grey images.
  const auto copy_rows = length == 5 ? CopyRows<5> : CopyRows<0>;
  ForEachPosition(shape, images, [&](int64_t offset) {
    copy_rows(shape.kernel, length, stride, input + offset, patches);
    patches += shape.patch_length();
  });
}

void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                     const float* patches, float* input) {
  const int64_t length = shape.kernel * shape.input.channels;
  const int64_t stride = shape.input.width * shape.input.channels;
  std::fill_n(input, images * shape.input.length(), 0.0f);
  ForEachPosition(shape, images, [&](int64_t offset) {
    for (int64_t row = 0; row < shape.kernel; ++row) {
      float* const target = input + offset + row * stride;
      for (int64_t i = 0; i < length; ++i) target[i] += patches[i];
      patches += length;
    }
  });
}

absl::StatusOr<std::unique_ptr<Layer>> Convolution::Create(
    Device* device, const ConvolutionShape& shape, int64_t images_max) {
  NEREUS_CHECK(shape.output().height > 0 && shape.output().width > 0)
      << "kernel " << shape.kernel << " on " << shape.input.height << "x"
      << shape.input.width;
  FloatArray patches = NEREUS_TRY(
      device->Allocate(images_max * shape.positions() * shape.patch_length()));
  return std::unique_ptr<Layer>(
      new Convolution(device, shape, std::move(patches)));
}

Convolution::Convolution(Device* device, const ConvolutionShape& shape,
                         FloatArray patches)
    : Layer(device, shape.input, shape.output(), SpecOf(shape)),
      shape_(shape),
      patches_(std::move(patches)) {}

void Convolution::Forward(int64_t images, const float* input,
                          const float* parameters, float* output) {
  device().ImagesToPatches(shape_, images, input, patches_.data());
  device().Affine(images * shape_.positions(), m(), n(), patches_.data(),
                  parameters, output);
}

void Convolution::Backward(int64_t images, const float* /*input*/,
                           const float* parameters,
                           const float* output_gradient, float* gradient,
                           float* input_gradient) {
  const int64_t rows = images * shape_.positions();
  device().AffineGradient(rows, m(), n(), output_gradient, patches_.data(),
                          gradient);
  if (input_gradient == nullptr) return;
  // The patches are not needed any more: the gradients overwrite them.
  device().AffineInputGradient(rows, m(), n(), output_gradient, parameters,
                               patches_.data());
  device().PatchesToImages(shape_, images, patches_.data(), input_gradient);
}

void ReluForward(int64_t length, float* values) {
  for (int64_t i = 0; i < length; ++i) {
    // Not std::max(0, value), which would turn NaN into 0.
    values[i] = values[i] < 0.0f ? 0.0f : values[i];
  }
}

void ReluBackward(int64_t length, const float* __restrict values,
                  float* __restrict gradient) {
  for (int64_t i = 0; i < length; ++i) {
    gradient[i] = values[i] > 0.0f ? gradient[i] : 0.0f;
  }
}

namespace {

LayerSpec SpecOf(const ImageShape& input, int64_t outputs) {
  LayerSpec spec;
  spec.kind = LayerKind::kFullyConnected;
  spec.has_factors = true;
  spec.m = outputs;
  spec.n = input.length();
  spec.parameters = spec.m * spec.n + spec.m;
  spec.rows = 1;
  return spec;
}

}  // namespace

FullyConnected::FullyConnected(Device* device, const ImageShape& input,
                               int64_t outputs)
    : Layer(device, input, {1, 1, outputs}, SpecOf(input, outputs)) {}

void FullyConnected::Forward(int64_t images, const float* input,
                             const float* parameters, float* output) {
  device().Affine(images, m(), n(), input, parameters, output);
}

void FullyConnected::Backward(int64_t images, const float* /*input*/,
                              const float* parameters,
                              const float* output_gradient, float* /*gradient*/,
                              float* input_gradient) {
  if (input_gradient == nullptr) return;
  device().AffineInputGradient(images, m(), n(), output_gradient, parameters,
                               input_gradient);
}

float SoftmaxCrossEntropy(int64_t rows, int64_t classes, const float* logits,
                          const int32_t* labels, float* gradient) {
  double total = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = logits + row * classes;
    float* out = gradient + row * classes;
    // Subtracts the largest logit: exp overflows for values from 89 on.
    const float largest = *std::max_element(in, in + classes);
    const double label_logit = in[labels[row]];
    double sum = 0.0;
    for (int64_t i = 0; i < classes; ++i) {
      out[i] = std::exp(in[i] - largest);
      sum += out[i];
    }
    total += std::log(sum) - (label_logit - largest);
    // Divides by `rows`, too, because the gradient is that of the mean.
    const float scale = static_cast<float>(1.0 / (sum * rows));
    for (int64_t i = 0; i < classes; ++i) out[i] *= scale;
    out[labels[row]] -= 1.0f / static_cast<float>(rows);
  }
  return static_cast<float>(total / static_cast<double>(rows));
}

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
