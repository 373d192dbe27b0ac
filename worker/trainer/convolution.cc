#include "worker/trainer/convolution.h"

#include <algorithm>
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

}  // namespace nereus
