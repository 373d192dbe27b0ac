#pragma once

#include <cstdint>

#include "tests/simulation/simulation_options.h"

namespace nereus {

// Returns the job of one seed of the swarm, with features drawn from the seed.
// Each feature that a job may have gets a line here, so that every feature
// meets every other one, and every fault, in some seed.
SimulatedClusterOptions DrawFeatures(uint64_t seed);

}  // namespace nereus
