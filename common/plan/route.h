#pragma once

#include <string>

#include "common/plan/scheme.h"
#include "common/plan/wire_type.h"

namespace nereus {

// How one layer's rounds go.
struct Route {
  Scheme scheme = Scheme::kServer;
  WireType wire = WireType::kFloat32;

  bool operator==(const Route&) const = default;
};

// A scheme and, in half a sentence, what spoke for it.
struct SchemeChoice {
  Scheme scheme = Scheme::kServer;
  std::string why;
  WireType wire = WireType::kFloat32;  // If that is to be chosen, too.
};

}  // namespace nereus
