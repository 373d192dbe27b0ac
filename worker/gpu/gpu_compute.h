#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/device/device_memory.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/driver/compute.h"
#include "common/protocol/replica_sample.h"
#include "worker/gpu/device_factors.h"
#include "worker/gpu/gpu_mirror.h"
#include "worker/gpu/gpu_splitter.h"

namespace nereus {

// Arithmetic of a worker's driver on a GPU: multiplies factors by cuBLAS, and
// splits the gradients and updates the parameters of layers that are in the
// GPU's memory. Called by the driving thread.
//
// Device memory: one gradient, of the largest layer that goes by a ring.
class GpuCompute final : public Compute {
 public:
  // Parts of the GPU client that this and the client both use.
  struct Parts {
    Stager* stager = nullptr;                 // Not owned.
    std::shared_ptr<DeviceFactors> products;  // Null: no layer has factors.
    // Splitters by layer; null: the layer is in host memory.
    std::vector<std::shared_ptr<GpuSplitter>> splitters;
    std::vector<std::shared_ptr<GpuMirror>> mirrors;  // Mirrors by layer.
    std::shared_ptr<PinnedPool> pool;                 // Memory for samples.
  };
  // Length, in bytes, of the memory that this takes from the pool
  // for the samples of a round, when the samples before have used up the last
  // one.
  static constexpr int64_t kSlabBytes = kSampledLayersMax * kSampledRuns *
                                        kSampledRunElements *
                                        static_cast<int64_t>(sizeof(float));

  explicit GpuCompute(Parts parts);
  // Waits for the updates under way, which a job that has failed leaves behind:
  // they read gradient_.
  ~GpuCompute() override;

  std::string name() const override;
  absl::StatusOr<BadValue> Multiply(
      const MultiplyFactors& factors,
      absl::FunctionRef<void(int64_t)> moved) override;
  bool SplitsOnDevice(int layer) const override;
  absl::Status Split(const SplitGradient& split) override;
  absl::Status AwaitNorms(const Buffer& values) override;
  absl::StatusOr<BadValue> Update(const UpdateParameters& update) override;
  absl::StatusOr<Buffer> Sample(int layer,
                                const SampledElements& sampled) override;

 private:
  // Returns the gradient of an update in device memory. Queues its copy if it
  // is on the host.
  absl::StatusOr<const float*> OnDevice(const Buffer& gradient);

  const Parts parts_;
  std::vector<Buffer> norms_;  // Norms of queued splits.
  Buffer slab_;  // Pinned memory for the next samples, as far as it is unused.
  // Copy of the last gradient that came from the host. Copies to it, and
  // updates that read it, are queued on Stager::in(), one after the other.
  DeviceMemory gradient_;
};

}  // namespace nereus
