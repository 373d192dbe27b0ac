#pragma once

#include "server/coordinator/coordinator.h"

namespace nereus {

// What a coordinator might save: no field has its default. Workers 1 and 4, one
// that has left, two shards; a checkpoint of round 12.
CoordinatorState SomeState();

}  // namespace nereus
