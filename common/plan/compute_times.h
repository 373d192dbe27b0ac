#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Time that one layer computes in one step on one worker.
struct LayerTime {
  absl::Duration forward;   // Time of the forward pass.
  absl::Duration backward;  // Time of the backward pass.

  bool operator==(const LayerTime&) const = default;
};

// Limit of the time of a layer's forward or backward pass, and of a step.
inline constexpr absl::Duration kComputeTimeMax = absl::Hours(24);

// Splits `compute`, the computing time of one step, over the layers. The
// backward pass gets the share `backward_share` of each layer's time, and the
// forward pass gets the rest. Fully connected layers and convolutions get time
// in proportion to their floating-point operations, 2 M N K for each product.
// Embeddings and vectors compute little, and get no time. If the model has only
// embeddings and vectors, each gets time in proportion to its parameters.
//
// REQUIRES: valid layers; 0 <= compute <= kComputeTimeMax; `backward_share` in
// [0, 1].
std::vector<LayerTime> SplitCompute(absl::Span<const LayerSpec> layers,
                                    absl::Duration compute,
                                    double backward_share);

// Returns measured times from JSON:
//
//   {"layers": [{"name": "conv1_1", "forward_seconds": 0.012,
//                "backward_seconds": 0.025}, ...]}
//
// The list names every layer of the model once, in any order. Other fields are
// ignored. `text` may be hostile.
//
// Errors: kInvalidArgument. For a wrong entry, the message names the entry
// ("layers[3] (\"fc6\")") and its value. If layers are missing, the message
// names up to five of them. For a text that is not JSON, the message says so.
absl::StatusOr<std::vector<LayerTime>> ParseComputeTrace(
    absl::string_view text, absl::Span<const LayerSpec> layers);

// Returns the sum of the forward and backward times of all layers.
absl::Duration TotalTime(absl::Span<const LayerTime> times);

}  // namespace nereus
