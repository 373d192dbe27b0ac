#include "worker/trainer/cuda_device.h"

#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/compute/factor_gradient_cuda.h"
#include "common/compute/update_rules_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_memory.h"
#include "common/device/device_scope.h"
#include "worker/trainer/gpu_device.h"
#include "worker/trainer/layers_cuda.h"

namespace nereus {
absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Create(int number) {
  const std::string what = absl::StrCat("GPU ", number);
  NEREUS_TRY(CheckDevice(number));
  // The calling thread launches all kernels later, and so needs this device.
  NEREUS_TRY(CudaStatus(cudaSetDevice(number), what, "cudaSetDevice"));
  auto device = std::shared_ptr<CudaDevice>(new CudaDevice(number));
  NEREUS_TRY(CudaStatus(
      cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), what,
      "cudaStreamCreateWithFlags"));
  for (cudaEvent_t& mark : device->marks_) {
    NEREUS_TRY(
        CudaStatus(cudaEventCreateWithFlags(&mark, cudaEventBlockingSync), what,
                   "cudaEventCreateWithFlags"));
  }
  device->cublas_ = NEREUS_TRY(CublasHandle::Create(number, what));
  NEREUS_TRY(CublasStatus(device->cublas_.SetStream(device->stream_), what,
                          "cublasSetStream"));
  return device;
}

CudaDevice::~CudaDevice() {
  if (stream_ == nullptr) return;
  // The calling thread can be another one than the thread of Create.
  const DeviceScope scope(number_, name());
  status_.Update(scope.status());
  Note(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  for (const cudaEvent_t mark : marks_) {
    if (mark != nullptr) Note(cudaEventDestroy(mark), "cudaEventDestroy");
  }
  Note(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

std::string CudaDevice::name() const { return absl::StrCat("cuda:", number_); }

void CudaDevice::Note(cudaError_t error, absl::string_view call) {
  // Only the first error is kept. Later ones are often its consequences.
  status_.Update(CudaStatus(error, name(), call));
}

void CudaDevice::Note(cublasStatus_t status, absl::string_view call) {
  status_.Update(CublasStatus(status, name(), call));
}

absl::StatusOr<FloatArray> CudaDevice::Allocate(int64_t count) {
  // The array shares ownership of the memory, which the last copy frees.
  auto memory = std::make_shared<DeviceMemory>();
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  *memory = NEREUS_TRY(DeviceMemory::Allocate(number_, name(), bytes));
  auto* const values = static_cast<float*>(memory->data());
  // The calling thread's current device can be another one than this.
  const DeviceScope scope(number_, name());
  NEREUS_TRY(scope.status());
  NEREUS_TRY(CudaStatus(
      cudaMemsetAsync(values, 0, static_cast<size_t>(bytes), stream_), name(),
      "cudaMemsetAsync", bytes));
  return FloatArray{std::shared_ptr<float>(std::move(memory), values), count};
}

void CudaDevice::Affine(int64_t rows, int64_t m, int64_t n, const float* input,
                        const float* parameters, float* output) {
  // Adds the bias last. The CPU adds the product to the bias instead; for that,
  // cuBLAS would need a copy of the bias in each row first.
  Multiply(Transpose::kYes, rows, m, n, input, parameters, output);
  Note(AddBiasCuda(rows, m, parameters + m * n, output, stream_),
       "AddBiasCuda");
}

void CudaDevice::AffineInputGradient(int64_t rows, int64_t m, int64_t n,
                                     const float* output_gradient,
                                     const float* parameters,
                                     float* input_gradient) {
  Multiply(Transpose::kNo, rows, n, m, output_gradient, parameters,
           input_gradient);
}

void CudaDevice::AffineGradient(int64_t rows, int64_t m, int64_t n,
                                const float* output_gradient,
                                const float* input, float* gradient) {
  Note(FactorGradientCuda(cublas_.get(), rows, m, n, /*bias=*/true,
                          /*scale=*/1.0f, output_gradient, input, gradient,
                          stream_),
       "FactorGradientCuda");
}

void CudaDevice::ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                                 const float* input, float* patches) {
  Note(ImagesToPatchesCuda(shape, images, input, patches, stream_),
       "ImagesToPatchesCuda");
}

void CudaDevice::PatchesToImages(const ConvolutionShape& shape, int64_t images,
                                 const float* patches, float* input) {
  Note(PatchesToImagesCuda(shape, images, patches, input, stream_),
       "PatchesToImagesCuda");
}

void CudaDevice::MaxPoolForward(const ImageShape& shape, int64_t images,
                                const float* input, float* output) {
  Note(MaxPoolForwardCuda(shape, images, input, output, stream_),
       "MaxPoolForwardCuda");
}

void CudaDevice::MaxPoolBackward(const ImageShape& shape, int64_t images,
                                 const float* input,
                                 const float* output_gradient,
                                 float* input_gradient) {
  Note(MaxPoolBackwardCuda(shape, images, input, output_gradient,
                           input_gradient, stream_),
       "MaxPoolBackwardCuda");
}

void CudaDevice::ReluForward(int64_t length, float* values) {
  Note(ReluForwardCuda(length, values, stream_), "ReluForwardCuda");
}

void CudaDevice::ReluBackward(int64_t length, const float* values,
                              float* gradient) {
  Note(ReluBackwardCuda(length, values, gradient, stream_), "ReluBackwardCuda");
}

int64_t CudaDevice::Optimize(const OptimizerOptions& optimizer, int64_t step,
                             int64_t count, const float* gradient,
                             float* parameters, float* state) {
  if (!HasMoments(optimizer.rule)) {
    Note(ApplySgdCuda(SgdStepOf(optimizer, 1.0f), count, gradient, parameters,
                      state, parameters, /*note=*/{}, stream_),
         "ApplySgdCuda");
  } else {
    Note(ApplyAdamCuda(AdamStepOf(optimizer, step, 1.0f), count, gradient,
                       parameters, state, state + count, parameters,
                       /*note=*/{}, stream_),
         "ApplyAdamCuda");
  }
  return -1;
}

void CudaDevice::Spend(absl::Duration time) {
  if (time == absl::ZeroDuration()) return;
  Note(SpinCuda(absl::ToInt64Nanoseconds(time), stream_), "SpinCuda");
}

void CudaDevice::Mark() {
  last_mark_ = 1 - last_mark_;
  Note(cudaEventRecord(marks_[last_mark_], stream_), "cudaEventRecord");
}

absl::Duration CudaDevice::BetweenMarks() {
  float milliseconds = 0.0f;
  Note(cudaEventSynchronize(marks_[last_mark_]), "cudaEventSynchronize");
  Note(cudaEventElapsedTime(&milliseconds, marks_[1 - last_mark_],
                            marks_[last_mark_]),
       "cudaEventElapsedTime");
  return absl::Milliseconds(milliseconds);
}

void CudaDevice::Copy(void* to, const void* from, size_t count,
                      cudaMemcpyKind kind) {
  Note(cudaMemcpyAsync(to, from, count * sizeof(float), kind, stream_),
       "cudaMemcpyAsync");
  // Waits for writes, too, because the caller may reuse its memory at once.
  Note(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void CudaDevice::Write(absl::Span<const float> values, float* to) {
  Copy(to, values.data(), values.size(), cudaMemcpyHostToDevice);
}

void CudaDevice::Read(const float* from, absl::Span<float> values) {
  Copy(values.data(), from, values.size(), cudaMemcpyDeviceToHost);
}

// cuBLAS is column-major. It sees each row-major matrix as its transpose: so
// c^T = op(b)^T * a^T.
void CudaDevice::Multiply(Transpose transpose_b, int64_t rows, int64_t columns,
                          int64_t inner, const float* a, const float* b,
                          float* c) {
  const float one = 1.0f;
  const float zero = 0.0f;
  // The leading dimension is the length of a row in memory.
  const bool transposed = transpose_b == Transpose::kYes;
  Note(cublasGemmEx(cublas_.get(), transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                    CUBLAS_OP_N, static_cast<int>(columns),
                    static_cast<int>(rows), static_cast<int>(inner), &one, b,
                    CUDA_R_32F, static_cast<int>(transposed ? inner : columns),
                    a, CUDA_R_32F, static_cast<int>(inner), &zero, c,
                    CUDA_R_32F, static_cast<int>(columns),
                    CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT),
       "cublasGemmEx");
}

absl::StatusOr<std::shared_ptr<Device>> MakeGpuDevice(int number) {
  return CudaDevice::Create(number);
}

}  // namespace nereus
