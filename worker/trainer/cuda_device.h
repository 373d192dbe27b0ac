#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/compute/gemm.h"
#include "common/device/cublas_handle.h"
#include "worker/trainer/device.h"

namespace nereus {

// A GPU, with a stream for all that a network does.
class CudaDevice final : public Device {
 public:
  // Errors: kUnavailable, no driver, or no such GPU; kResourceExhausted.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Create(int number);
  ~CudaDevice() override;

  int number() const { return number_; }
  cudaStream_t stream() const { return stream_; }

  std::string name() const override;
  absl::StatusOr<FloatArray> Allocate(int64_t count) override;
  absl::StatusOr<std::unique_ptr<Layer>> MakeConvolution(
      const ConvolutionShape& shape, int64_t images_max) override;
  std::unique_ptr<Layer> MakeMaxPooling(const ImageShape& input) override;
  std::unique_ptr<Layer> MakeFullyConnected(const ImageShape& input,
                                            int64_t outputs) override;
  void ReluForward(int64_t length, float* values) override;
  void ReluBackward(int64_t length, const float* values,
                    float* gradient) override;
  void Scale(int64_t length, float factor, float* values) override;
  float SoftmaxCrossEntropy(int64_t rows, int64_t classes, const float* logits,
                            const int32_t* labels, float* gradient) override;
  void PickLargest(int64_t columns, const float* values,
                   absl::Span<int32_t> picked) override;
  void Write(absl::Span<const float> values, float* to) override;
  void Read(const float* from, absl::Span<float> values) override;
  absl::Status status() const override { return status_; }

  // Remembers the first error, of `call`.
  void Note(cudaError_t error, absl::string_view call);
  void Note(cublasStatus_t status, absl::string_view call);

  // Gemm (common/compute/gemm.h) with alpha 1 and beta 0, float32 throughout.
  void Multiply(Transpose transpose_a, Transpose transpose_b, int64_t rows,
                int64_t columns, int64_t inner, const float* a, const float* b,
                float* c);
  // FactorGradient, with a bias.
  void MultiplyFactors(int64_t rows, int64_t m, int64_t n,
                       const float* output_gradient, const float* input,
                       float* gradient);

 private:
  explicit CudaDevice(int number) : number_(number) {}

  // Memory that lives as long as the device, at least `bytes` long.
  void* Scratch(size_t bytes);
  // Waits for what is queued.
  void Synchronize();

  const int number_;
  cudaStream_t stream_ = nullptr;
  CublasHandle cublas_;
  absl::Status status_;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

}  // namespace nereus
