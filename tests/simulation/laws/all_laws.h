#pragma once

#include "tests/simulation/laws/law_checker.h"
#include "tests/simulation/simulation_options.h"

namespace nereus {

// Adds every law that holds for the job, whatever the faults are. All laws of a
// simulated cluster are registered here.
void AddAllLaws(const SimulatedClusterOptions& options,
                const Workload& workload, LawChecker* laws);

}  // namespace nereus
