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

// What there is to choose among.
struct TimeChoices {
  std::optional<Scheme> forced;  // Of every layer that supports it.
  bool may_use_factors = true;
  WireType wire = WireType::kFloat32;  // Of all layers; or
  bool choose_wire = false;            // fp32 or bf16 for each.
  int64_t fusion_bytes = kNoFusion;    // Or
  bool choose_fusion = false;          // the best one.
};

// Routes for the layers that keep an iteration short, by Timeline: the best of
// the plans that have one scheme and one wire type for all layers that support
// it, or one scheme for large and one for small layers, or Poseidon's choice;
// and then, in turn, another scheme for a layer, the largest first, and another
// threshold of fusion, as long as that makes it shorter. At last all layers get
// float32 that do not make it longer by it, the smallest first. What all nodes
// share makes this cheap: a few hundred timelines for a hundred layers, and no
// more than some tenths of a second where layers and nodes are many.
//
// REQUIRES: as Timeline.
struct TimeChoice {
  std::vector<SchemeChoice> layers;
  int64_t fusion_bytes = kNoFusion;  // As told, or the best.
};
TimeChoice ChooseByTime(absl::Span<const LayerSpec> layers,
                        const Placement& placement, const ClusterShape& cluster,
                        const TimeModel& model, const TimeChoices& among);

// The threshold of fusion with which an iteration is shortest, of the powers of
// four that FusionTuner looks at: of equal ones that nearest to its guess.
int64_t BestFusion(const Timeline& timeline, absl::Span<const Route> routes);

}  // namespace nereus
