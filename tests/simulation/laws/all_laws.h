#pragma once

#include "tests/simulation/laws/law_checker.h"
#include "tests/simulation/simulation_options.h"

namespace nereus {

// Adds every law that holds for the job, whatever the faults are. A law that
// needs a special job is added by the tests that run such a job.
void AddAllLaws(const SimulatedClusterOptions& options,
                const Workload& workload, LawChecker* laws);

}  // namespace nereus
