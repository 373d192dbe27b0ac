#pragma once

#include <cstdint>

#include "tests/simulation/simulation_options.h"

namespace nereus {

// Returns the job of one seed of the swarm, with features drawn from the seed.
// Add a line here for each new feature of a job: then some seed combines the
// feature with any other feature and any fault.
SimulatedClusterOptions DrawFeatures(uint64_t seed);

}  // namespace nereus
