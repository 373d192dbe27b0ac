#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/gemm.h"
#include "worker/trainer/activation.h"
#include "worker/trainer/convolution.h"
#include "worker/trainer/device.h"
#include "worker/trainer/pooling.h"

namespace nereus {
namespace {

// Device of this process's CPU: calls the plain functions of this folder and of
// common/compute.
class CpuDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  absl::StatusOr<FloatArray> Allocate(int64_t count) override {
    auto values = std::make_shared<std::vector<float>>(count);
    return FloatArray{std::shared_ptr<float>(values, values->data()), count};
  }
  void Affine(int64_t rows, int64_t m, int64_t n, const float* input,
              const float* parameters, float* output) override {
    // The product is added to the bias, which saves a second pass.
    const float* const bias = parameters + m * n;
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(bias, m, output + row * m);
    }
    Gemm(Transpose::kNo, Transpose::kYes, rows, m, n, 1.0f, input, parameters,
         1.0f, output);
  }
  void AffineInputGradient(int64_t rows, int64_t m, int64_t n,
                           const float* output_gradient,
                           const float* parameters,
                           float* input_gradient) override {
    Gemm(Transpose::kNo, Transpose::kNo, rows, n, m, 1.0f, output_gradient,
         parameters, 0.0f, input_gradient);
  }
  void AffineGradient(int64_t rows, int64_t m, int64_t n,
                      const float* output_gradient, const float* input,
                      float* gradient) override {
    FactorGradient(rows, m, n, /*bias=*/true, /*scale=*/1.0f, output_gradient,
                   input, gradient);
  }
  void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                       const float* input, float* patches) override {
    nereus::ImagesToPatches(shape, images, input, patches);
  }
  void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                       const float* patches, float* input) override {
    nereus::PatchesToImages(shape, images, patches, input);
  }
  void MaxPoolForward(const ImageShape& shape, int64_t images,
                      const float* input, float* output) override {
    nereus::MaxPoolForward(shape, images, input, output);
  }
  void MaxPoolBackward(const ImageShape& shape, int64_t images,
                       const float* input, const float* output_gradient,
                       float* input_gradient) override {
    nereus::MaxPoolBackward(shape, images, input, output_gradient,
                            input_gradient);
  }
  void ReluForward(int64_t length, float* values) override {
    nereus::ReluForward(length, values);
  }
  void ReluBackward(int64_t length, const float* values,
                    float* gradient) override {
    nereus::ReluBackward(length, values, gradient);
  }
  // Host memory is device memory here: both are plain copies.
  void Write(absl::Span<const float> values, float* to) override {
    absl::c_copy(values, to);
  }
  void Read(const float* from, absl::Span<float> values) override {
    std::copy_n(from, values.size(), values.begin());
  }
  absl::Status status() const override { return absl::OkStatus(); }
};

}  // namespace

std::shared_ptr<Device> MakeCpuDevice() {
  return std::make_shared<CpuDevice>();
}

}  // namespace nereus
