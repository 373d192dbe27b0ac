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
  // Fusion threshold of ChooseByTime; nothing if another function chose.
  std::optional<int64_t> fusion_bytes;
};

// Searches for routes with a short iteration, as Timeline predicts it. First
// the search compares whole plans: one scheme for all layers, one scheme for
// large and another for small layers, and Poseidon's choice. Then it improves
// the best plan: it tries other schemes for each layer, the largest layer
// first, and other fusion thresholds. It makes up to three such passes, as long
// as a pass changes something. Last, if it may choose wire types, it changes
// layers from bf16 back to fp32 where that costs no noticeable time. The result
// is good, not optimal.
//
// Cost: a few hundred predictions for a hundred layers. With many layers and
// hosts, the search makes fewer predictions. For up to a thousand chunks on a
// thousand hosts, it takes some tenths of a second at most.
//
// `rules` say what the search may choose: schemes (`forced`, `no_factors`),
// wire types (`choose_wire`) and the fusion threshold (`choose_fusion`). What
// it may not choose, it takes from `wire` and `fusion_bytes`. It reads no other
// rules. The result always has a fusion threshold.
//
// REQUIRES: the arguments meet Timeline's requirements.
PlanChoice ChooseByTime(absl::Span<const LayerSpec> layers,
                        const Placement& placement, const ClusterShape& cluster,
                        const TimeModel& model, const PlanRules& rules);

// Returns the fusion threshold with the shortest iteration. Candidates are
// FusionTuner::kBytesFirst times and divided by powers of four, within
// FusionTuner's range. Of thresholds that are nearly equally good, the one
// nearest to kBytesFirst wins.
int64_t BestFusion(const Timeline& timeline, absl::Span<const Route> routes);

}  // namespace nereus
