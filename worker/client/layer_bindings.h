#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"

namespace nereus {

// OK, or kInvalidArgument: `what` of the layer has `found` floats, and should
// have `expected`.
absl::Status CheckLength(const LayerSpec& layer, absl::string_view what,
                         size_t found, int64_t expected);

// OK, or kInvalidArgument: the layer has no factors, or they are of other
// sizes, or `gradient` is; that may be empty if it is not needed.
absl::Status CheckFactors(const LayerSpec& layer, const Factors& factors,
                          absl::Span<const float> gradient,
                          bool needs_gradient);

// OK, or kFailedPrecondition: the layer is pushed by its factors.
absl::Status CheckHasNoFactors(const LayerSpec& layer);

// OK if the caller keeps optimizer state only where it may run the optimizer.
// Errors: kInvalidArgument.
absl::Status CheckState(const std::vector<LayerBinding>& layers,
                        std::optional<OptimizerPlace> optimizer);

// Returns the layers' names.
std::vector<std::string> NamesOf(const std::vector<LayerSpec>& specs);

// Returns the layers' specs if memory and state of every layer fit them.
// Errors: kInvalidArgument.
absl::StatusOr<std::vector<LayerSpec>> CheckedSpecsIn(
    const std::vector<LayerBinding>& layers);

}  // namespace nereus
