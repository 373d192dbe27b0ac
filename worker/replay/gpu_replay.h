#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client_options.h"
#include "worker/replay/replay_device.h"

namespace nereus {

// Joins the job with `layers` in the memory of GPU `number`. Kernels keep the
// GPU busy instead of computing. The GPU becomes the device of the calling
// thread, and this thread makes all calls of the result. Errors: those of
// GpuClient::Connect; kUnimplemented, the program was built without CUDA.
absl::StatusOr<std::unique_ptr<ReplayDevice>> JoinReplayOnGpu(
    const ClientOptions& options, const std::vector<LayerSpec>& layers,
    int number);

}  // namespace nereus
