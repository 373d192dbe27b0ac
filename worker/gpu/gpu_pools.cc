#include "worker/gpu/gpu_pools.h"

#include <algorithm>
#include <cstdint>

#include "common/base/status.h"
#include "common/compute/bad_result_cuda.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"
#include "worker/client/layer_bindings.h"
#include "worker/gpu/device_look.h"
#include "worker/gpu/gpu_compute.h"
#include "worker/gpu/gpu_splitter.h"

namespace nereus {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

// Largest number of arrays of a layer's length in the pool `own`: the
// parameters, the state of the caller's optimizer, the state of the job's
// optimizer, and three rounds of a ring. PeerRounds has two rounds open, and
// keeps one that was finished before an epoch.
constexpr int64_t kCopiesMax = 1 + kStateArraysMax + kOptimizerStatesMax + 3;

// Largest number of slabs of samples: those of one round, and of a round before
// it that have not been read yet.
constexpr int64_t kSlabsMax = 3;

}  // namespace

absl::Status CheckGpuLayers(const std::vector<LayerBinding>& layers,
                            const GpuOptions& options) {
  NEREUS_TRY(CheckedSpecsIn(layers).status());
  for (const LayerBinding& layer : layers) {
    const int64_t arrays = std::ssize(layer.state) / layer.spec.parameters;
    if (arrays > kStateArraysMax) {
      return InvalidArgumentError("layer ", layer.spec.name, " has ", arrays,
                                  " arrays of state, must be in [0, ",
                                  kStateArraysMax, "]");
    }
    if (!layer.on_host || !layer.spec.has_factors) continue;
    return InvalidArgumentError(
        "layer ", layer.spec.name,
        " is on the host, and factors are multiplied on the GPU: leave its "
        "has_factors false");
  }
  return CheckStaging(layers, options);
}

absl::Status CheckStaging(const std::vector<LayerBinding>& layers,
                          const GpuOptions& options) {
  // Largest number of pinned bytes that one push of a layer needs.
  int64_t largest = 0;
  for (const LayerBinding& layer : layers) {
    // A layer on the host needs no pinned memory.
    if (layer.on_host) continue;
    largest = std::max(largest, PushStager::PinnedBytesOf(layer.spec));
  }
  if (options.staging_bytes > 0 && options.staging_bytes < largest) {
    return InvalidArgumentError(
        "staging_bytes is ", options.staging_bytes,
        ", must be 0 or at least what the push of a layer needs: ", largest);
  }
  return absl::OkStatus();
}

GpuPools MakeGpuPools(const std::vector<LayerBinding>& layers,
                      const GpuOptions& options) {
  int64_t own = PinnedPool::RoundedUp(DeviceLook::kPinnedBytes) +
                kSlabsMax * PinnedPool::RoundedUp(GpuCompute::kSlabBytes) +
                PinnedPool::RoundedUp(std::ssize(layers) *
                                      static_cast<int64_t>(sizeof(BadResult)));
  for (const LayerBinding& layer : layers) {
    if (layer.on_host) continue;
    own += kCopiesMax *
               PinnedPool::RoundedUp(layer.spec.parameters * kFloatBytes) +
           PinnedPool::RoundedUp(GpuSplitter::PinnedBytesOf(layer.spec));
  }
  // The user's limit holds only for the pool `gradients`. The pool `own` gets
  // the limit above: its use depends on the plan, which the user does not
  // choose.
  return {PinnedPool::Create(options.device, GradientBytesOf(layers, options)),
          PinnedPool::Create(options.device, own)};
}

int64_t GradientBytesOf(const std::vector<LayerBinding>& layers,
                        const GpuOptions& options) {
  if (options.staging_bytes > 0) return options.staging_bytes;
  int64_t gradients = 0;
  for (const LayerBinding& layer : layers) {
    if (layer.on_host) continue;
    gradients += PushStager::PinnedBytesOf(layer.spec);
  }
  return gradients;
}

absl::Status PinAhead(const std::vector<LayerBinding>& layers,
                      const PushStager& pushes, PinnedPool& gradients) {
  std::vector<Buffer> pinned;  // Goes back to the pool at the end.
  for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
    if (layers[layer].on_host) continue;
    absl::StatusOr<Buffer> memory = gradients.Take(
        absl::StrCat("layer ", layers[layer].spec.name, ", gradient"),
        pushes.PinnedBytesOf(layer), absl::ZeroDuration());
    // The pool may be too small for a whole step (GpuOptions::staging_bytes).
    if (absl::IsDeadlineExceeded(memory.status())) break;
    NEREUS_TRY(memory.status());
    pinned.push_back(*std::move(memory));
  }
  return absl::OkStatus();
}

}  // namespace nereus
