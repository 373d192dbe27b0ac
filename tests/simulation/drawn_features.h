#ifndef NEREUS_TESTS_SIMULATION_DRAWN_FEATURES_H_
#define NEREUS_TESTS_SIMULATION_DRAWN_FEATURES_H_

#include <cstdint>

#include "tests/simulation/simulated_cluster.h"

namespace nereus {

// The job that a seed of the swarm has. THE PLACE where it is drawn which
// features are on: one that a job may have gets a line in drawn_features.cc.
SimulatedClusterOptions DrawFeatures(uint64_t seed);

}  // namespace nereus

#endif  // NEREUS_TESTS_SIMULATION_DRAWN_FEATURES_H_
