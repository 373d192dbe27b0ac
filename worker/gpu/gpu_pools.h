#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/device/pinned_pool.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Returns OK if `layers` make a model that a client with these options can
// train. Errors: kInvalidArgument, with the layer and the value.
absl::Status CheckGpuLayers(const std::vector<GpuLayerBinding>& layers,
                            const GpuOptions& options);

// Pinned host memory of one GPU client.
struct GpuPools {
  // Memory of gradients and factors on their way to the network. Bounded by
  // GpuOptions::staging_bytes.
  std::shared_ptr<PinnedPool> gradients;
  // Memory that the client keeps as long as it lives: the parameters' mirrors,
  // and the lists of the splitters.
  std::shared_ptr<PinnedPool> own;
};
// Returns pools that have room for `layers`. Pins no memory yet.
GpuPools MakeGpuPools(const std::vector<GpuLayerBinding>& layers,
                      const GpuOptions& options);

}  // namespace nereus
