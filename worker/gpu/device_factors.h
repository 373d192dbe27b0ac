#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/device/cublas_handle.h"
#include "common/device/device_memory.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/outbox.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Multiplies factors on a GPU: one worker's, which are there, and those of all
// workers, which the network has brought to the host. Thread-safe.
class DeviceFactors final {
 public:
  // Errors: kResourceExhausted; what CUDA or cuBLAS says.
  static absl::StatusOr<std::shared_ptr<DeviceFactors>> Create(int device);
  ~DeviceFactors();

  // Queues the product of a layer's factors on `stream`. `gradient`:
  // {spec.parameters}. Errors: what CUDA or cuBLAS says, with the layer's name.
  absl::Status MultiplyOwn(const LayerSpec& spec, const GpuFactors& factors,
                           float* gradient, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(own_mu_);

  // "NVIDIA-H200/sm-90x132/cublas-130000": what cuBLAS chooses by, beside
  // shapes, and alignment, which here is always the same.
  const std::string& name() const { return name_; }
  // Queues the product on stream(), if the gradient is in the GPU's memory;
  // otherwise it is there. Has device memory for the factors and the product of
  // the largest layer.
  absl::Status Multiply(const MultiplyFactors& factors);
  cudaStream_t stream() const { return stream_; }

 private:
  explicit DeviceFactors(int device) : device_(device) {}

  absl::Status Start();
  // Device memory of Multiply's, `bytes` long.
  absl::StatusOr<uint8_t*> Scratch(int64_t bytes);

  const int device_;
  std::string name_;

  // Of one's own, each: products on two streams must not share what a handle
  // has.
  Mutex own_mu_;
  CublasHandle own_ ABSL_GUARDED_BY(own_mu_);

  // Of Multiply alone.
  CublasHandle all_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t copied_ = nullptr;
  DeviceMemory scratch_;
};

}  // namespace nereus
