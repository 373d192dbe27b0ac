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

// Chooses routes that keep an iteration short, by Timeline. First it compares
// whole plans: one scheme for all layers, one scheme for large and one for
// small layers, and Poseidon's choice. Then it improves the best plan: it tries
// other schemes for each layer, the largest layer first, and other fusion
// thresholds. It makes up to three such passes, as long as a pass changes
// something. Last, if it may choose wire types, it returns layers from bf16 to
// fp32 where that costs no noticeable time. The result is good, not optimal.
//
// Cost: a few hundred timelines for a hundred layers. With many layers and
// hosts the search plays fewer timelines: up to a thousand chunks on a thousand
// hosts it takes some tenths of a second at most.
//
// `rules` say what the search may choose: schemes (`forced`, `no_factors`),
// wire types (`choose_wire`) and the fusion threshold (`choose_fusion`). The
// result always has a fusion threshold. The search does not read the other
// rules, except for the values `wire` and `fusion_bytes`.
//
// REQUIRES: the arguments meet Timeline's requirements.
PlanChoice ChooseByTime(absl::Span<const LayerSpec> layers,
                        const Placement& placement, const ClusterShape& cluster,
                        const TimeModel& model, const PlanRules& rules);

// Returns the fusion threshold with the shortest iteration. Candidates are
// FusionTuner::kBytesFirst, and its multiples and quotients by powers of four
// within FusionTuner's range. If thresholds are nearly as good as each other,
// the one nearest to kBytesFirst wins.
int64_t BestFusion(const Timeline& timeline, absl::Span<const Route> routes);

}  // namespace nereus
