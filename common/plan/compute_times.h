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

// Longest time that a layer, or a step, may take.
inline constexpr absl::Duration kComputeTimeMax = absl::Hours(24);

// Splits the computing time of one step over the layers, where only the sum is
// known; `backward_share` of it is backward. Fully connected layers and
// convolutions get it in proportion to their floating-point operations, 2 M N K
// for each product. The computing of embeddings and vectors is small compared
// to that, and counts as zero. A model of nothing else is split in proportion
// to the layers' parameters.
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
// with every layer of the model once, in any order. Other fields are ignored.
// `text` may be hostile.
//
// Errors: kInvalidArgument, naming the entry ("layers[3] (\"fc6\")") and its
// value, or the layers that are missing.
absl::StatusOr<std::vector<LayerTime>> ParseComputeTrace(
    absl::string_view text, absl::Span<const LayerSpec> layers);

// Returns the sum over all layers, forward and backward.
absl::Duration TotalTime(absl::Span<const LayerTime> times);

}  // namespace nereus
