#pragma once

#include <cstdint>

namespace nereus {

// Returns the number of calls of operator new in this program so far, without
// those that ask for an alignment. Linking this library replaces the operator.
int64_t Allocations();

}  // namespace nereus
