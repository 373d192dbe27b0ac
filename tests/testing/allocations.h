#pragma once

#include <cstdint>

namespace nereus {

// How often this program has called operator new, which a program that links
// this gets replaced.
int64_t Allocations();

}  // namespace nereus
