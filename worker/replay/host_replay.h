#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client_options.h"
#include "worker/replay/replay_device.h"

namespace nereus {

// Joins the job with `layers` in host memory. The calling thread sleeps instead
// of computing. Errors: those of Client::Connect.
absl::StatusOr<std::unique_ptr<ReplayDevice>> JoinReplay(
    const ClientOptions& options, const std::vector<LayerSpec>& layers);

}  // namespace nereus
