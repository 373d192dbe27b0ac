#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/cost_model.h"
#include "common/plan/fusion.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/route.h"
#include "common/plan/timeline.h"

namespace nereus {

// Freedom of the search.
struct SearchFreedom {
  // Scheme of every layer that supports it; nothing: the search chooses.
  std::optional<Scheme> forced;
  bool may_use_factors = true;         // False if no layer may go by factors.
  WireType wire = WireType::kFloat32;  // Wire type of all layers.
  // True if the search chooses fp32 or bf16 for each layer instead.
  bool choose_wire = false;
  int64_t fusion_bytes = kNoFusion;  // Fusion threshold.
  bool choose_fusion = false;        // True if the search chooses it instead.
};

// Outcome of the search.
struct TimeChoice {
  std::vector<SchemeChoice> layers;  // Choice for each layer.
  // Fusion threshold: the given one, or the best one.
  int64_t fusion_bytes = kNoFusion;
};
// Chooses routes that keep an iteration short, by Timeline. First it compares
// whole plans: one scheme for all layers, one scheme for large and one for
// small layers, and Poseidon's choice. Then it improves the best one layer by
// layer, the largest first, and the fusion threshold, as long as that makes the
// iteration shorter. Last, if it may choose wire types, it returns layers to
// fp32 where that costs no time. The result is good, not optimal.
//
// Cost: a few hundred timelines for a hundred layers, and at most some tenths
// of a second with many layers and nodes.
//
// REQUIRES: as Timeline.
TimeChoice ChooseByTime(absl::Span<const LayerSpec> layers,
                        const Placement& placement, const ClusterShape& cluster,
                        const TimeModel& model, const SearchFreedom& among);

// Returns the fusion threshold with the shortest iteration, among
// FusionTuner::kBytesFirst times powers of four within FusionTuner's range. Of
// thresholds that are as good, the one nearest to kBytesFirst wins.
int64_t BestFusion(const Timeline& timeline, absl::Span<const Route> routes);

}  // namespace nereus
