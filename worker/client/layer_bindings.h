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

// Checks that `found`, a number of floats, is `expected`. `what` names the
// floats in the error, such as "the gradient". Errors: kInvalidArgument, with
// the layer's name.
absl::Status CheckLength(const LayerSpec& layer, absl::string_view what,
                         size_t found, int64_t expected);

// Checks that factors of the layer may be pushed now. `layer`: the spec with
// the rows that the job knows. Errors: kInvalidArgument.
absl::Status CheckTakesFactors(const LayerSpec& layer);

// Checks CheckTakesFactors, that the matrices of `factors` have the right
// sizes, and that `gradient` has the layer's size. `gradient` may be empty if
// `needs_gradient` is false. Errors: kInvalidArgument.
absl::Status CheckFactors(const LayerSpec& layer, const Factors& factors,
                          absl::Span<const float> gradient,
                          bool needs_gradient);

// Checks that frames can carry the dense gradient of a layer by factors: their
// offsets have 32 bits. Errors: kInvalidArgument.
absl::Status CheckFitsFrames(const LayerSpec& layer);

// Checks that the layers have no optimizer state if `optimizer` says that the
// servers run the optimizer. Errors: kInvalidArgument.
absl::Status CheckState(const std::vector<LayerBinding>& layers,
                        std::optional<OptimizerPlace> optimizer);

// Checks that no layer has lost its factors, which only a running job learns.
// Errors: kInvalidArgument.
absl::Status CheckNoneIsLost(absl::Span<const LayerSpec> layers);

// Returns the layers' names.
std::vector<std::string> NamesOf(const std::vector<LayerSpec>& specs);

// Returns the layers' specs. Checks that they are a valid model, and that the
// memory and the state of every layer have the right sizes. Errors:
// kInvalidArgument.
absl::StatusOr<std::vector<LayerSpec>> CheckedSpecsIn(
    const std::vector<LayerBinding>& layers);

}  // namespace nereus
