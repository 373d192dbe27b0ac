#include "worker/trainer/cuda_device.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/compute/factor_gradient_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"
#include "worker/trainer/cuda_layers.h"
#include "worker/trainer/layers_cuda.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

cublasOperation_t OperationOf(Transpose transpose) {
  return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Create(int number) {
  const std::string what = absl::StrCat("GPU ", number);
  NEREUS_RETURN_IF_ERROR(CheckDevice(number));
  // Of this thread, which goes on to use it.
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(number), what, "cudaSetDevice"));
  auto device = std::shared_ptr<CudaDevice>(new CudaDevice(number));
  NEREUS_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), what,
      "cudaStreamCreateWithFlags"));
  NEREUS_ASSIGN_OR_RETURN(device->cublas_, CublasHandle::Create(number, what));
  return device;
}

CudaDevice::~CudaDevice() {
  if (stream_ == nullptr) return;
  Synchronize();
  Note(cudaFree(scratch_), "cudaFree");
  Note(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

std::string CudaDevice::name() const { return absl::StrCat("cuda:", number_); }

void CudaDevice::Note(cudaError_t error, absl::string_view call) {
  status_.Update(CudaStatus(error, name(), call));
}

void CudaDevice::Note(cublasStatus_t status, absl::string_view call) {
  status_.Update(CublasStatus(status, name(), call));
}

void CudaDevice::Synchronize() {
  Note(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::StatusOr<FloatArray> CudaDevice::Allocate(int64_t count) {
  const DeviceScope scope(number_, name());
  NEREUS_RETURN_IF_ERROR(scope.status());
  const int64_t bytes = count * kFloatBytes;
  void* memory = nullptr;
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)), name(),
                 "cudaMalloc", bytes));
  FloatArray array{
      std::shared_ptr<float>(static_cast<float*>(memory),
                             [](float* values) { (void)cudaFree(values); }),
      count};
  NEREUS_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_), name(),
      "cudaMemsetAsync", bytes));
  return array;
}

absl::StatusOr<std::unique_ptr<Layer>> CudaDevice::MakeConvolution(
    const ConvolutionShape& shape, int64_t images_max) {
  const LayerSpec spec = ConvolutionSpec(shape, images_max);
  NEREUS_ASSIGN_OR_RETURN(FloatArray patches, Allocate(spec.rows * spec.n));
  NEREUS_ASSIGN_OR_RETURN(FloatArray gradients, Allocate(spec.rows * spec.n));
  return std::make_unique<CudaConvolution>(this, shape, std::move(patches),
                                           std::move(gradients));
}

std::unique_ptr<Layer> CudaDevice::MakeMaxPooling(const ImageShape& input) {
  return std::make_unique<CudaMaxPooling>(this, input);
}

std::unique_ptr<Layer> CudaDevice::MakeFullyConnected(const ImageShape& input,
                                                      int64_t outputs) {
  return std::make_unique<CudaFullyConnected>(this, input, outputs);
}

void CudaDevice::ReluForward(int64_t length, float* values) {
  Note(ReluForwardCuda(length, values, stream_), "ReluForwardCuda");
}

void CudaDevice::ReluBackward(int64_t length, const float* values,
                              float* gradient) {
  Note(ReluBackwardCuda(length, values, gradient, stream_), "ReluBackwardCuda");
}

void CudaDevice::Scale(int64_t length, float factor, float* values) {
  Note(ScaleCuda(length, factor, values, stream_), "ScaleCuda");
}

void* CudaDevice::Scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    Synchronize();
    Note(cudaFree(scratch_), "cudaFree");
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    const cudaError_t error = cudaMalloc(&scratch_, bytes);
    Note(error, "cudaMalloc");
    if (error == cudaSuccess) scratch_bytes_ = bytes;
  }
  return scratch_;
}

float CudaDevice::SoftmaxCrossEntropy(int64_t rows, int64_t classes,
                                      const float* logits,
                                      const int32_t* labels, float* gradient) {
  const auto count = static_cast<size_t>(rows);
  auto* const device_losses =
      static_cast<double*>(Scratch(count * (sizeof(double) + sizeof(int32_t))));
  if (device_losses == nullptr) return 0.0f;
  auto* const device_labels = reinterpret_cast<int32_t*>(device_losses + rows);
  Note(cudaMemcpyAsync(device_labels, labels, count * sizeof(int32_t),
                       cudaMemcpyHostToDevice, stream_),
       "cudaMemcpyAsync of labels");
  Note(SoftmaxCrossEntropyCuda(rows, classes, logits, device_labels, gradient,
                               device_losses, stream_),
       "SoftmaxCrossEntropyCuda");
  std::vector<double> losses(count);
  Note(cudaMemcpyAsync(losses.data(), device_losses, count * sizeof(double),
                       cudaMemcpyDeviceToHost, stream_),
       "cudaMemcpyAsync of losses");
  Synchronize();
  double total = 0.0;
  for (const double loss : losses) total += loss;
  return static_cast<float>(total / static_cast<double>(rows));
}

void CudaDevice::PickLargest(int64_t columns, const float* values,
                             absl::Span<int32_t> picked) {
  auto* const on_device =
      static_cast<int32_t*>(Scratch(picked.size() * sizeof(int32_t)));
  if (on_device == nullptr) return;
  Note(PickLargestCuda(static_cast<int64_t>(picked.size()), columns, values,
                       on_device, stream_),
       "PickLargestCuda");
  Note(
      cudaMemcpyAsync(picked.data(), on_device, picked.size() * sizeof(int32_t),
                      cudaMemcpyDeviceToHost, stream_),
      "cudaMemcpyAsync of classes");
  Synchronize();
}

void CudaDevice::Write(absl::Span<const float> values, float* to) {
  Note(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float),
                       cudaMemcpyHostToDevice, stream_),
       "cudaMemcpyAsync to the GPU");
  Synchronize();
}

void CudaDevice::Read(const float* from, absl::Span<float> values) {
  Note(cudaMemcpyAsync(values.data(), from, values.size() * sizeof(float),
                       cudaMemcpyDeviceToHost, stream_),
       "cudaMemcpyAsync from the GPU");
  Synchronize();
}

// Row-major a * b, as cuBLAS sees it: column-major b^T * a^T.
void CudaDevice::Multiply(Transpose transpose_a, Transpose transpose_b,
                          int64_t rows, int64_t columns, int64_t inner,
                          const float* a, const float* b, float* c) {
  const float one = 1.0f;
  const float zero = 0.0f;
  const int64_t a_width = transpose_a == Transpose::kYes ? rows : inner;
  const int64_t b_width = transpose_b == Transpose::kYes ? inner : columns;
  Note(cublasSetStream(cublas_.get(), stream_), "cublasSetStream");
  Note(cublasGemmEx(cublas_.get(), OperationOf(transpose_b),
                    OperationOf(transpose_a), static_cast<int>(columns),
                    static_cast<int>(rows), static_cast<int>(inner), &one, b,
                    CUDA_R_32F, static_cast<int>(b_width), a, CUDA_R_32F,
                    static_cast<int>(a_width), &zero, c, CUDA_R_32F,
                    static_cast<int>(columns), CUBLAS_COMPUTE_32F_PEDANTIC,
                    CUBLAS_GEMM_DEFAULT),
       "cublasGemmEx");
}

void CudaDevice::MultiplyFactors(int64_t rows, int64_t m, int64_t n,
                                 const float* output_gradient,
                                 const float* input, float* gradient) {
  Note(FactorGradientCuda(cublas_.get(), rows, m, n,
                          /*bias=*/true, /*scale=*/1.0f, output_gradient, input,
                          gradient, stream_),
       "FactorGradientCuda");
}

}  // namespace nereus
