#include "worker/gpu/device_factors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/compute/factor_gradient_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

// As cudaMalloc aligns.
int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

bool IsOnDevice(const void* pointer) {
  cudaPointerAttributes attributes = {};
  return cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess &&
         (attributes.type == cudaMemoryTypeDevice ||
          attributes.type == cudaMemoryTypeManaged);
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceFactors>> DeviceFactors::Create(
    int device) {
  auto factors = std::shared_ptr<DeviceFactors>(new DeviceFactors(device));
  NEREUS_RETURN_IF_ERROR(factors->Start());
  return factors;
}

absl::Status DeviceFactors::Start() {
  const std::string what = absl::StrCat("GPU ", device_);
  const DeviceScope scope(device_, what);
  NEREUS_RETURN_IF_ERROR(scope.status());
  {
    MutexLock lock(&own_mu_);
    NEREUS_ASSIGN_OR_RETURN(own_, CublasHandle::Create(device_, what));
  }
  NEREUS_ASSIGN_OR_RETURN(all_, CublasHandle::Create(device_, what));
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                 what, "cudaStreamCreateWithFlags"));
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(
                     &copied_, cudaEventDisableTiming | cudaEventBlockingSync),
                 what, "cudaEventCreateWithFlags"));
  cudaDeviceProp properties = {};
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, device_), what,
                 "cudaGetDeviceProperties"));
  int version = 0;
  NEREUS_RETURN_IF_ERROR(CublasStatus(cublasGetVersion(all_.get(), &version),
                                      what, "cublasGetVersion"));
  name_ =
      absl::StrCat(absl::StrReplaceAll(
                       absl::NullSafeStringView(properties.name).substr(0, 128),
                       {{" ", "-"}}),
                   "/sm-", properties.major, properties.minor, "x",
                   properties.multiProcessorCount, "/cublas-", version);
  return absl::OkStatus();
}

DeviceFactors::~DeviceFactors() {
  if (stream_ == nullptr) return;
  const DeviceScope scope(device_, "factors");
  const absl::Status ended = CudaStatus(cudaStreamSynchronize(stream_),
                                        "factors", "cudaStreamSynchronize");
  if (!ended.ok()) NEREUS_LOG(Error) << ended.message();
  (void)cudaEventDestroy(copied_);
  (void)cudaStreamDestroy(stream_);
}

absl::Status DeviceFactors::MultiplyOwn(const LayerSpec& spec,
                                        const GpuFactors& factors,
                                        float* gradient, cudaStream_t stream) {
  const std::string what =
      absl::StrCat("layer ", spec.name, ", product of factors");
  const DeviceScope scope(device_, what);
  NEREUS_RETURN_IF_ERROR(scope.status());
  MutexLock lock(&own_mu_);
  return CublasStatus(
      FactorGradientCuda(own_.get(), spec.rows, spec.m, spec.n,
                         /*bias=*/spec.parameters > spec.m * spec.n,
                         /*scale=*/1.0f, factors.output_gradient, factors.input,
                         gradient, stream),
      what, "cublasGemmEx");
}

absl::StatusOr<uint8_t*> DeviceFactors::Scratch(int64_t bytes) {
  if (bytes > scratch_.bytes()) {
    NEREUS_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "factors",
                                      "cudaStreamSynchronize"));
    scratch_ = DeviceMemory();
    NEREUS_ASSIGN_OR_RETURN(
        scratch_,
        DeviceMemory::Allocate(device_, "factors of all workers", bytes));
  }
  return static_cast<uint8_t*>(scratch_.data());
}

absl::Status DeviceFactors::Multiply(const MultiplyFactors& factors) {
  constexpr char kWhat[] = "product of all workers' factors";
  const DeviceScope scope(device_, kWhat);
  NEREUS_RETURN_IF_ERROR(scope.status());
  const bool stays = IsOnDevice(factors.gradient.data());
  const int64_t output_bytes = factors.output_gradient.bytes();
  const int64_t input_bytes = factors.input.bytes();
  const int64_t gradient_bytes = factors.gradient.bytes();
  const int64_t input_at = Aligned(output_bytes);
  const int64_t gradient_at = input_at + Aligned(input_bytes);
  NEREUS_ASSIGN_OR_RETURN(uint8_t* const memory,
                          Scratch(gradient_at + gradient_bytes));
  auto* const output = reinterpret_cast<float*>(memory);
  auto* const input = reinterpret_cast<float*>(memory + input_at);
  auto* const gradient = reinterpret_cast<float*>(memory + gradient_at);
  const auto copy = [&](void* to, const void* from, int64_t bytes) {
    return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                      cudaMemcpyDefault, stream_),
                      kWhat, "cudaMemcpyAsync", bytes);
  };
  absl::Status status =
      copy(output, factors.output_gradient.data(), output_bytes);
  status.Update(copy(input, factors.input.data(), input_bytes));
  status.Update(
      CudaStatus(cudaEventRecord(copied_, stream_), kWhat, "cudaEventRecord"));
  if (!status.ok()) {
    // A copy may be under way from memory that its owner uses next.
    (void)cudaStreamSynchronize(stream_);
    return status;
  }
  status =
      CublasStatus(FactorGradientCuda(all_.get(), factors.rows, factors.m,
                                      factors.n, factors.bias, factors.scale,
                                      output, input, gradient, stream_),
                   kWhat, "cublasGemmEx");
  status.Update(copy(factors.gradient.data(), gradient, gradient_bytes));
  // The host's memory may have others next.
  status.Update(stays ? CudaStatus(cudaEventSynchronize(copied_), kWhat,
                                   "cudaEventSynchronize")
                      : CudaStatus(cudaStreamSynchronize(stream_), kWhat,
                                   "cudaStreamSynchronize"));
  return status;
}

}  // namespace nereus
