#pragma once

#include <string>

#include "common/plan/scheme.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Decision about one layer: its scheme, and the format of its values in frames.
struct Route {
  Scheme scheme = Scheme::kServer;     // Way in which gradients travel.
  WireType wire = WireType::kFloat32;  // Number format of the frames.

  bool operator==(const Route&) const = default;
};

// Scheme that the planner has chosen for one layer, with the reason.
struct SchemeChoice {
  // Chosen scheme.
  Scheme scheme = Scheme::kServer;
  std::string why;  // Reason, as part of a sentence.
  // Chosen wire type. It counts only if the planner may choose wire types
  // (PlanRules::choose_wire).
  WireType wire = WireType::kFloat32;
};

}  // namespace nereus
