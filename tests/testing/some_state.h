#pragma once

#include "server/coordinator/coordinator.h"

namespace nereus {

// Returns a state that a coordinator might save: workers 1 and 4, worker 0 that
// has left, two shards, and a checkpoint of round 12. Each field of
// CoordinatorState differs from its default.
CoordinatorState SomeState();

}  // namespace nereus
