#ifndef NEREUS_COMMON_PLAN_TIME_COST_H_
#define NEREUS_COMMON_PLAN_TIME_COST_H_

#include <vector>

#include "absl/types/span.h"
#include "common/plan/cost_model.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/route.h"
#include "common/plan/timeline.h"

namespace nereus {

// Schemes for the layers that keep an iteration short, by Timeline: the best of
// the plans that have one scheme for all layers that support it, or one for
// large and one for small layers, or Poseidon's choice; and then, layer by
// layer, whatever makes that shorter. What all nodes share makes this cheap: a
// few hundred timelines for a hundred layers.
//
// `may_use_factors`: some layer may go by factors. REQUIRES: as Timeline.
std::vector<SchemeChoice> ChooseByTime(absl::Span<const LayerSpec> layers,
                                       const Placement& placement,
                                       const ClusterShape& cluster,
                                       const TimeModel& model, WireType wire,
                                       bool may_use_factors);

}  // namespace nereus

#endif  // NEREUS_COMMON_PLAN_TIME_COST_H_
