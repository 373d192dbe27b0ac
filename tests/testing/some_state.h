#ifndef NEREUS_TESTS_TESTING_SOME_STATE_H_
#define NEREUS_TESTS_TESTING_SOME_STATE_H_

#include "server/coordinator/coordinator.h"

namespace nereus {

// What a coordinator might save: no field has its default. Workers 1 and 4, one
// that has left, two shards; a checkpoint of round 12.
CoordinatorState SomeState();

}  // namespace nereus

#endif  // NEREUS_TESTS_TESTING_SOME_STATE_H_
