#include "worker/device_factors.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/compute/factor_gradient_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {

absl::StatusOr<std::unique_ptr<DeviceFactors>> DeviceFactors::Create(
    int device, FactorPrecision precision) {
  NEREUS_ASSIGN_OR_RETURN(
      CublasHandle handle,
      CublasHandle::Create(device, absl::StrCat("GPU ", device)));
  return std::unique_ptr<DeviceFactors>(
      new DeviceFactors(device, precision, std::move(handle)));
}

absl::Status DeviceFactors::Multiply(const LayerSpec& spec,
                                     const GpuFactors& factors, float* gradient,
                                     cudaStream_t stream) {
  const std::string what =
      absl::StrCat("layer ", spec.name, ", product of factors");
  const DeviceScope scope(device_, what);
  NEREUS_RETURN_IF_ERROR(scope.status());
  void* scratch = nullptr;
  if (precision_ == FactorPrecision::kBfloat16) {
    const int64_t bytes =
        spec.rows * (spec.m + spec.n) * static_cast<int64_t>(sizeof(uint16_t));
    NEREUS_RETURN_IF_ERROR(CudaStatus(
        cudaMallocAsync(&scratch, static_cast<size_t>(bytes), stream), what,
        "cudaMallocAsync", bytes));
  }
  MutexLock lock(&mu_);
  absl::Status status = CublasStatus(
      FactorGradientCuda(handle_.get(), precision_, spec.rows, spec.m, spec.n,
                         /*bias=*/spec.parameters > spec.m * spec.n,
                         /*scale=*/1.0f, factors.output_gradient, factors.input,
                         static_cast<uint16_t*>(scratch), gradient, stream),
      what, "cublasGemmEx");
  if (scratch != nullptr) {
    status.Update(
        CudaStatus(cudaFreeAsync(scratch, stream), what, "cudaFreeAsync"));
  }
  return status;
}

}  // namespace nereus
