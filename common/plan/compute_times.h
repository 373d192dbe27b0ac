#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// How long one layer computes in one step on one worker.
struct LayerTime {
  absl::Duration forward;
  absl::Duration backward;

  bool operator==(const LayerTime&) const = default;
};

// The longest that a layer, or a step, may take.
inline constexpr absl::Duration kComputeTimeMax = absl::Hours(24);

// Splits the compute time of one step over the layers, where only the sum is
// known: `backward_share` of it is backward. Fully connected layers and
// convolutions get it in proportion to their floating-point operations, 2 M N K
// for each product of a layer; what embeddings and vectors compute is small
// next to that, and counts as nothing. A model that has nothing else is split
// in proportion to the layers' parameters.
//
// REQUIRES: valid layers; 0 <= compute <= kComputeTimeMax; `backward_share` in
// [0, 1].
std::vector<LayerTime> SplitCompute(absl::Span<const LayerSpec> layers,
                                    absl::Duration compute,
                                    double backward_share);

// Measured times, as JSON:
//
//   {"layers": [{"name": "conv1_1", "forward_seconds": 0.012,
//                "backward_seconds": 0.025}, ...]}
//
// with every layer of the model once, in any order. Other fields are ignored.
//
// Errors: kInvalidArgument, naming the entry ("layers[3] (\"fc6\")") and its
// value, or the layers that are missing. `text` may be anything.
absl::StatusOr<std::vector<LayerTime>> ParseComputeTrace(
    absl::string_view text, absl::Span<const LayerSpec> layers);

// The sum over all layers, forward and backward.
absl::Duration TotalTime(absl::Span<const LayerTime> times);

}  // namespace nereus
