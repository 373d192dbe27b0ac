#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"

namespace nereus {

// Returns OK if `found`, the number of floats of `what` of a layer, is
// `expected`. Errors: kInvalidArgument.
absl::Status CheckLength(const LayerSpec& layer, absl::string_view what,
                         size_t found, int64_t expected);

// Checks that the layer has factors, that `factors` have the right sizes, and
// that `gradient` has the layer's size. Without `needs_gradient`, `gradient`
// may be empty. Errors: kInvalidArgument.
absl::Status CheckFactors(const LayerSpec& layer, const Factors& factors,
                          absl::Span<const float> gradient,
                          bool needs_gradient);

// Checks that the layer is not pushed by its factors. Errors:
// kFailedPrecondition.
absl::Status CheckHasNoFactors(const LayerSpec& layer);

// Checks that the caller keeps optimizer state only if its worker may run the
// optimizer. Errors: kInvalidArgument.
absl::Status CheckState(const std::vector<LayerBinding>& layers,
                        std::optional<OptimizerPlace> optimizer);

// Returns the layers' names.
std::vector<std::string> NamesOf(const std::vector<LayerSpec>& specs);

// Returns the layers' specs if memory and state of every layer fit them.
// Errors: kInvalidArgument.
absl::StatusOr<std::vector<LayerSpec>> CheckedSpecsIn(
    const std::vector<LayerBinding>& layers);

}  // namespace nereus
