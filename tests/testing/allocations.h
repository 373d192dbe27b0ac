#ifndef NEREUS_TESTS_TESTING_ALLOCATIONS_H_
#define NEREUS_TESTS_TESTING_ALLOCATIONS_H_

#include <cstdint>

namespace nereus {

// How often this program has called operator new, which a program that links
// this gets replaced.
int64_t Allocations();

}  // namespace nereus

#endif  // NEREUS_TESTS_TESTING_ALLOCATIONS_H_
