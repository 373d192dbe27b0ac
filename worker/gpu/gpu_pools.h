#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/device/pinned_pool.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// OK if these layers make a model that a client with these options can train.
// Errors: kInvalidArgument, with the layer and the value.
absl::Status CheckGpuLayers(const std::vector<GpuLayerBinding>& layers,
                            const GpuOptions& options);

// Pinned host memory of a client on a GPU.
struct GpuPools {
  std::shared_ptr<PinnedPool> gradients;  // On their way to the servers.
  std::shared_ptr<PinnedPool> own;        // Kept as long as the client lives.
};
GpuPools MakeGpuPools(const std::vector<GpuLayerBinding>& layers,
                      const GpuOptions& options);

}  // namespace nereus
