#pragma once

#include "server/coordinator/coordinator.h"

namespace nereus {

// Returns a state that a coordinator might save, in which no field has its
// default: workers 1 and 4, a worker that has left, two shards, and a
// checkpoint of round 12.
CoordinatorState SomeState();

}  // namespace nereus
