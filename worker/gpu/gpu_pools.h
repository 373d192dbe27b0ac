#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/device/pinned_pool.h"
#include "worker/gpu/push_stager.h"
#include "worker/public/gpu.h"

namespace nereus {

// Returns OK if a client with these options can train a model of these layers.
// The rows of a layer may be unknown: CheckStaging is then called again when
// the job knows them. Errors: kInvalidArgument, with the layer and the value.
absl::Status CheckGpuLayers(const std::vector<LayerBinding>& layers,
                            const GpuOptions& options);
// Checks that GpuOptions::staging_bytes suffices for the push of each layer.
// Errors: kInvalidArgument, with the numbers.
absl::Status CheckStaging(const std::vector<LayerBinding>& layers,
                          const GpuOptions& options);

// Pinned host memory of one GPU client.
struct GpuPools {
  // Memory of gradients and factors on their way to the network. Bounded by
  // GpuOptions::staging_bytes.
  std::shared_ptr<PinnedPool> gradients;
  // Memory for all else: host copies of parameters and state, rounds on a ring,
  // and the lists of the splitters.
  std::shared_ptr<PinnedPool> own;
};
// Returns pools that have room for `layers`. Pins no memory yet.
GpuPools MakeGpuPools(const std::vector<LayerBinding>& layers,
                      const GpuOptions& options);
// Returns the number of bytes that the pool GpuPools::gradients may pin for
// `layers`.
int64_t GradientBytesOf(const std::vector<LayerBinding>& layers,
                        const GpuOptions& options);

// Pins the memory that the pushes of a step need, as far as the pool allows.
// Called before the first step: pinning in that step would delay its pushes,
// and could wait for the whole GPU.
absl::Status PinAhead(const std::vector<LayerBinding>& layers,
                      const PushStager& pushes, PinnedPool& gradients);

}  // namespace nereus
