#include "worker/trainer/convolution.h"

#include <algorithm>
#include <cstring>

#include "common/base/logging.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/gemm.h"

namespace nereus {
namespace {

// The part of a patch's row that lies inside the image: `length` columns from
// column `image_begin` of the image and `patch_begin` of the patch.
struct Overlap {
  int64_t image_begin;
  int64_t patch_begin;
  int64_t length;  // 0 if the whole row is padding.
};

Overlap OverlapOf(const ConvolutionShape& shape, int64_t output_column) {
  const int64_t begin = output_column - shape.padding;
  const int64_t inside = std::max<int64_t>(begin, 0);
  const int64_t end = std::min(begin + shape.kernel, shape.input.width);
  return {inside, inside - begin, std::max<int64_t>(end - inside, 0)};
}

// Calls visit(kernel row, offset of the overlap in the image or -1 if the row
// is outside of it, overlap) for each row of the patch at (y, x).
template <typename Visit>
void ForEachPatchRow(const ConvolutionShape& shape, int64_t y, int64_t x,
                     Visit visit) {
  const Overlap overlap = OverlapOf(shape, x);
  for (int64_t row = 0; row < shape.kernel; ++row) {
    const int64_t image_row = y - shape.padding + row;
    const bool inside = image_row >= 0 && image_row < shape.input.height;
    const int64_t pixel = image_row * shape.input.width + overlap.image_begin;
    visit(row, inside ? pixel * shape.input.channels : -1, overlap);
  }
}

// Any patch, in part outside of the image or not.
void CopyPatch(const ConvolutionShape& shape, int64_t y, int64_t x,
               const float* image, float* patch) {
  const int64_t channels = shape.input.channels;
  ForEachPatchRow(shape, y, x,
                  [&](int64_t row, int64_t offset, const Overlap& overlap) {
                    float* target = patch + row * shape.kernel * channels;
                    std::fill_n(target, shape.kernel * channels, 0.0f);
                    if (offset < 0) return;
                    std::copy_n(image + offset, overlap.length * channels,
                                target + overlap.patch_begin * channels);
                  });
}

// `rows` rows of `length` floats, `stride` apart in the image. kLength is
// `length` or 0: where it is known, the copy is two instructions instead of a
// call, which makes the first layer's patches twice as fast.
template <int64_t kLength>
void CopyRows(int64_t rows, int64_t length, int64_t stride, const float* image,
              float* patch) {
  if (kLength != 0) length = kLength;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(patch + row * length, image + row * stride,
                length * sizeof(float));
  }
}

}  // namespace

ImageShape ConvolutionShape::output() const {
  return {input.height + 2 * padding - kernel + 1,
          input.width + 2 * padding - kernel + 1, output_channels};
}

int64_t ConvolutionShape::patch_length() const {
  return kernel * kernel * input.channels;
}

LayerSpec ConvolutionSpec(const ConvolutionShape& shape, int64_t images) {
  LayerSpec spec;
  spec.kind = LayerKind::kConvolution;
  spec.m = shape.output_channels;
  spec.n = shape.patch_length();
  spec.parameters = spec.m * spec.n + spec.m;
  spec.rows = images * shape.output().height * shape.output().width;
  return spec;
}

void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                     const float* input, float* patches) {
  const ImageShape output = shape.output();
  const int64_t channels = shape.input.channels;
  const int64_t length = shape.kernel * channels;
  const int64_t stride = shape.input.width * channels;
  // 5: a 5 x 5 kernel on grey images.
  const auto copy_rows = length == 5 ? CopyRows<5> : CopyRows<0>;
  float* patch = patches;
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t y = 0; y < output.height; ++y) {
      for (int64_t x = 0; x < output.width; ++x) {
        if (shape.padding == 0) {
          copy_rows(shape.kernel, length, stride,
                    input + y * stride + x * channels, patch);
        } else {
          CopyPatch(shape, y, x, input, patch);
        }
        patch += shape.patch_length();
      }
    }
    input += shape.input.length();
  }
}

void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                     const float* patches, float* input) {
  const ImageShape output = shape.output();
  const int64_t channels = shape.input.channels;
  const float* patch = patches;
  const auto add_row = [&](int64_t row, int64_t offset,
                           const Overlap& overlap) {
    if (offset < 0) return;
    const float* source =
        patch + (row * shape.kernel + overlap.patch_begin) * channels;
    float* target = input + offset;
    const int64_t length = overlap.length * channels;
    for (int64_t i = 0; i < length; ++i) target[i] += source[i];
  };
  for (int64_t image = 0; image < images; ++image) {
    std::fill_n(input, shape.input.length(), 0.0f);
    for (int64_t y = 0; y < output.height; ++y) {
      for (int64_t x = 0; x < output.width; ++x) {
        ForEachPatchRow(shape, y, x, add_row);
        patch += shape.patch_length();
      }
    }
    input += shape.input.length();
  }
}

Convolution::Convolution(const ConvolutionShape& shape, int64_t images_max)
    : shape_(shape),
      positions_(shape.output().height * shape.output().width),
      patches_(images_max * positions_ * shape.patch_length()) {
  NEREUS_CHECK(shape.output().height > 0 && shape.output().width > 0)
      << "kernel " << shape.kernel << " on " << shape.input.height << "x"
      << shape.input.width << " padded by " << shape.padding;
}

void Convolution::Forward(int64_t images, const float* input,
                          const float* parameters, float* output) {
  const int64_t m = shape_.output_channels;
  const int64_t n = shape_.patch_length();
  const int64_t rows = images * positions_;
  ImagesToPatches(shape_, images, input, patches_.data());
  const float* bias = parameters + m * n;
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(bias, m, output + row * m);
  }
  Gemm(Transpose::kNo, Transpose::kYes, rows, m, n, 1.0f, patches_.data(),
       parameters, 1.0f, output);
}

void Convolution::Backward(int64_t images, const float* /*input*/,
                           const float* parameters,
                           const float* output_gradient, float* gradient,
                           float* input_gradient) {
  const int64_t m = shape_.output_channels;
  const int64_t n = shape_.patch_length();
  const int64_t rows = images * positions_;
  FactorGradient(rows, m, n, /*bias=*/true, 1.0f, output_gradient,
                 patches_.data(), gradient);
  if (input_gradient == nullptr) return;
  patch_gradients_.resize(patches_.size());
  Gemm(Transpose::kNo, Transpose::kNo, rows, n, m, 1.0f, output_gradient,
       parameters, 0.0f, patch_gradients_.data());
  PatchesToImages(shape_, images, patch_gradients_.data(), input_gradient);
}

}  // namespace nereus
