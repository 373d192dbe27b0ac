#ifndef NEREUS_WORKER_DEVICE_FACTORS_H_
#define NEREUS_WORKER_DEVICE_FACTORS_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/compute/factor_precision.h"
#include "common/device/cublas_handle.h"
#include "common/plan/layer_spec.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Multiplies a layer's factors on a GPU. Thread-safe. With products on one
// stream, the same factors give the same bits.
class DeviceFactors {
 public:
  // Errors: kResourceExhausted; what CUDA or cuBLAS says.
  static absl::StatusOr<std::unique_ptr<DeviceFactors>> Create(
      int device, FactorPrecision precision);

  // Queues it on `stream`. `gradient`: {spec.parameters}.
  // Errors: what CUDA or cuBLAS says, with the layer's name.
  absl::Status Multiply(const LayerSpec& spec, const GpuFactors& factors,
                        float* gradient, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  DeviceFactors(int device, FactorPrecision precision, CublasHandle handle)
      : device_(device), precision_(precision), handle_(std::move(handle)) {}

  const int device_;
  const FactorPrecision precision_;
  Mutex mu_;
  CublasHandle handle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus

#endif  // NEREUS_WORKER_DEVICE_FACTORS_H_
