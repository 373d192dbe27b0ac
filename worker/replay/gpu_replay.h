#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client_options.h"
#include "worker/replay/replay_device.h"

namespace nereus {

// Joins the job with `layers` in the memory of GPU `number`. Kernels keep the
// GPU busy instead of computing. The GPU becomes the calling thread's device,
// and that thread makes all calls. A program that was built without CUDA has
// the same function. Errors: those of GpuClient::Connect; without CUDA,
// kUnimplemented.
absl::StatusOr<std::unique_ptr<ReplayDevice>> JoinReplayOnGpu(
    const ClientOptions& options, const std::vector<LayerSpec>& layers,
    int number);

}  // namespace nereus
