#pragma once

#include <string>

#include "common/plan/scheme.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Decision about one layer: the way and the format of its gradients.
struct Route {
  Scheme scheme = Scheme::kServer;     // Way of the gradients.
  WireType wire = WireType::kFloat32;  // Number format of the frames.

  bool operator==(const Route&) const = default;
};

// Scheme that the planner has chosen for one layer, with the reason.
struct SchemeChoice {
  // Chosen scheme.
  Scheme scheme = Scheme::kServer;
  std::string why;  // Reason, as part of a sentence.
  // Chosen wire type. Used only if the planner may choose it
  // (PlanRules::choose_wire).
  WireType wire = WireType::kFloat32;
};

}  // namespace nereus
