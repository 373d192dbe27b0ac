#pragma once

#include <cstdint>

#include "tests/simulation/simulated_cluster.h"

namespace nereus {

// The job that a seed of the swarm has. THE PLACE where it is drawn which
// features are on: one that a job may have gets a line in drawn_features.cc.
SimulatedClusterOptions DrawFeatures(uint64_t seed);

}  // namespace nereus
