#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/cost_model.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"
#include "common/plan/route.h"
#include "common/plan/timeline.h"

namespace nereus {

// Choice of the schemes of a model, by time, by bytes or by a rule.
struct PlanChoice {
  std::vector<SchemeChoice> layers;  // Choice for each layer.
  // Fusion threshold, if it was chosen together with the schemes.
  std::optional<int64_t> fusion_bytes;
};

// Chooses routes that keep an iteration short, by Timeline. First it compares
// whole plans: one scheme for all layers, one scheme for large and one for
// small layers, and Poseidon's choice. Then it improves the best one layer by
// layer, the largest first, and the fusion threshold, as long as that makes the
// iteration shorter. Last, if it may choose wire types, it returns layers to
// fp32 where that costs no time. The result is good, not optimal.
//
// Cost: a few hundred timelines for a hundred layers, and at most some tenths
// of a second with many layers and hosts.
//
// `rules` say what the search may choose: schemes (`forced`, `no_factors`),
// wire types and the fusion threshold, which the result has in any case. The
// other rules are the planner's.
//
// REQUIRES: as Timeline.
PlanChoice ChooseByTime(absl::Span<const LayerSpec> layers,
                        const Placement& placement, const ClusterShape& cluster,
                        const TimeModel& model, const PlanRules& rules);

// Returns the fusion threshold with the shortest iteration, among
// FusionTuner::kBytesFirst times powers of four within FusionTuner's range. Of
// thresholds that are as good, the one nearest to kBytesFirst wins.
int64_t BestFusion(const Timeline& timeline, absl::Span<const Route> routes);

}  // namespace nereus
