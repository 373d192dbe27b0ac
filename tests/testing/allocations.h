#pragma once

#include <cstdint>

namespace nereus {

// Returns how often this program has called operator new. Linking this library
// replaces that operator.
int64_t Allocations();

}  // namespace nereus
