#pragma once

#include "common/protocol/membership.h"

namespace nereus {

// Speed that a worker measures by probes (LinkProbe).
enum class Probed { kNothing, kLink, kMemory };

// Measurement by probes that one worker makes in an epoch.
struct ProbePlan {
  Probed probed = Probed::kNothing;
  // Member that gets the probes; unused with kNothing. kLink: a server.
  // kMemory: another worker of this host.
  PeerId target;
  int local_workers = 1;  // Number of workers of this host.
};

// Returns the measurement that a worker makes in an epoch. The first worker of
// each host measures the host's link, to a server on another host if there is
// one. The second worker measures the host's memory, unless the job has partial
// rounds: then workers of one host hand each other nothing. If all workers of a
// host measured at the same time, each would get a part of the rate only.
ProbePlan PlanProbes(const EpochStart& start);

}  // namespace nereus
