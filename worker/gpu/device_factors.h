#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/device/cublas_handle.h"
#include "common/device/device_memory.h"
#include "common/device/stager.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/outbox.h"
#include "worker/public/gpu.h"

namespace nereus {

// Multiplies factors on a GPU, by cuBLAS. MultiplyOwn multiplies the factors of
// this worker, which are on the GPU already. Multiply multiplies the factors of
// all workers, which the network has brought to the host. Any thread may call
// MultiplyOwn; one thread at a time may call Multiply.
//
// Uses device memory for two workspaces of cuBLAS and, from the first Multiply
// on, for all workers' factors of one layer, for 4 MiB of an addend, and for
// the product if the gradient is not aligned to 256 bytes. This memory grows to
// what the largest layer needs.
class DeviceFactors final {
 public:
  // Errors: kResourceExhausted, out of device memory; errors of CUDA or cuBLAS.
  // `stager`: not owned; must outlive this.
  static absl::StatusOr<std::shared_ptr<DeviceFactors>> Create(Stager* stager);
  // Waits for the products that Multiply has queued.
  ~DeviceFactors();

  // Queues the product of this worker's factors of a layer, which have
  // spec.rows rows, on `stream`. `gradient`: device memory, {spec.parameters}.
  // Errors: those of CUDA or cuBLAS, with the layer's name.
  absl::Status MultiplyOwn(const LayerSpec& spec, const Factors& factors,
                           float* gradient, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(own_mu_);

  // Returns the model of the GPU and the version of cuBLAS, for example
  // "NVIDIA-H200/sm-90x132/cublas-130000". Environment variables that change
  // how cuBLAS computes are appended if they are set. Workers with equal names
  // compute equal bits: cuBLAS chooses its kernel by what the name says, and by
  // shapes, alignment and workspace, which are the same on all workers.
  const std::string& name() const { return name_; }
  // Queues the product of all workers' factors, and waits until the factors are
  // copied to the GPU. Work that is queued on Stager::in() after the call sees
  // the product in `factors.gradient`, which is device memory.
  absl::Status Multiply(const MultiplyFactors& factors);

 private:
  explicit DeviceFactors(Stager* stager) : stager_(*stager) {}

  // Makes the handles, the stream and the name.
  absl::Status Start();
  // Adds an addend to a product, which has as many values, and waits until that
  // is done. `scratch`: device memory of kAddendBytes bytes.
  absl::Status AddTo(float* product, const Buffer& addend, float scale,
                     uint8_t* scratch);
  // Length of the parts in which Multiply copies an addend to the GPU. Its
  // memory is reserved at the first product, so a dense gradient in mid-job
  // needs no new memory, which a program with a cache of its own may not leave.
  static constexpr int64_t kAddendBytes = int64_t{4} << 20;

  // Returns `bytes` bytes of device memory for Multiply. The next call of
  // Scratch returns the same memory, or a larger allocation instead of it.
  absl::StatusOr<uint8_t*> Scratch(int64_t bytes);

  Stager& stager_;    // Not owned.
  std::string name_;  // See name().

  // Handle of MultiplyOwn. Multiply uses another handle (all_), because
  // products that run on two streams at once must not share a workspace.
  Mutex own_mu_;
  CublasHandle own_ ABSL_GUARDED_BY(own_mu_);
  // End of the last product of MultiplyOwn. The next product waits for this
  // point, because both use the workspace of own_.
  Stager::Point own_done_ ABSL_GUARDED_BY(own_mu_);

  // Only Multiply uses the members below.
  CublasHandle all_;
  cudaStream_t stream_ = nullptr;  // Stream of the products.
  DeviceMemory scratch_;           // See Scratch.
};

}  // namespace nereus
