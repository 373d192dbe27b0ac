#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/gemm.h"
#include "common/device/cublas_handle.h"
#include "worker/trainer/device.h"

namespace nereus {

// Device of one GPU: a stream, a cuBLAS handle, and the kernels of
// layers_cuda.h. The thread that creates it makes all calls; any thread may
// destroy it.
class CudaDevice final : public Device {
 public:
  // Returns GPU `number`, counted as by cudaSetDevice, and makes it the device
  // of the calling thread. Errors: kInvalidArgument, no such GPU; kUnavailable,
  // no driver; kResourceExhausted, out of device memory.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Create(int number);
  ~CudaDevice() override;

  std::string name() const override;
  int gpu() const override { return number_; }
  Stream stream() const override { return stream_; }
  absl::StatusOr<FloatArray> Allocate(int64_t count) override;
  void Affine(int64_t rows, int64_t m, int64_t n, const float* input,
              const float* parameters, float* output) override;
  void AffineInputGradient(int64_t rows, int64_t m, int64_t n,
                           const float* output_gradient,
                           const float* parameters,
                           float* input_gradient) override;
  void AffineGradient(int64_t rows, int64_t m, int64_t n,
                      const float* output_gradient, const float* input,
                      float* gradient) override;
  void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                       const float* input, float* patches) override;
  void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                       const float* patches, float* input) override;
  void MaxPoolForward(const ImageShape& shape, int64_t images,
                      const float* input, float* output) override;
  void MaxPoolBackward(const ImageShape& shape, int64_t images,
                       const float* input, const float* output_gradient,
                       float* input_gradient) override;
  void ReluForward(int64_t length, float* values) override;
  void ReluBackward(int64_t length, const float* values,
                    float* gradient) override;
  int64_t Optimize(const OptimizerOptions& optimizer, int64_t step,
                   int64_t count, const float* gradient, float* parameters,
                   float* state) override;
  void Spend(absl::Duration time) override;
  void Mark() override;
  absl::Duration BetweenMarks() override;
  void Write(absl::Span<const float> values, float* to) override;
  void Read(const float* from, absl::Span<float> values) override;
  absl::Status status() const override { return status_; }

 private:
  explicit CudaDevice(int number) : number_(number) {}

  // Stores the error of `call` in status_, if it is the first.
  void Note(cudaError_t error, absl::string_view call);
  void Note(cublasStatus_t status, absl::string_view call);

  // Computes c = a * op(b), row-major, in float32 throughout: a is rows x
  // inner, c is rows x columns.
  void Multiply(Transpose transpose_b, int64_t rows, int64_t columns,
                int64_t inner, const float* a, const float* b, float* c);

  // Copies between the host and the device, after all queued work. Waits.
  void Copy(void* to, const void* from, size_t count, cudaMemcpyKind kind);

  const int number_;
  cudaStream_t stream_ = nullptr;  // See stream().
  // Handle of the products, on stream_.
  CublasHandle cublas_;
  // Events of Mark, which takes them in turn. They record the time.
  std::array<cudaEvent_t, 2> marks_ = {};
  int last_mark_ = 0;    // Index of the event of the last call.
  absl::Status status_;  // First error.
};

}  // namespace nereus
