#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/network/event_queue.h"
#include "common/protocol/outbox.h"
#include "tests/simulation/laws/law_checker.h"
#include "tests/simulation/simulated_hosts.h"
#include "tests/simulation/simulated_process.h"
#include "tests/simulation/simulation_options.h"

namespace nereus {

// State that all parts of a simulated cluster share: virtual time, chance, the
// processes and the laws. All parts schedule on one `events`, and all but
// network and disk draw from one `random`. So the same seed gives the same run
// to the last event. A part with a real clock or with a random number that does
// not come from the seed would break that.
struct SimulatedWorld {
  // Carries out the actions of a process's machine.
  using Execute = std::function<void(SimulatedProcess& process, Outbox& out)>;

  SimulatedWorld(const SimulatedClusterOptions& job, Workload what,
                 const ClusterView* view, Execute carry_out);

  // Returns a time drawn evenly from [0, max].
  absl::Duration Draw(absl::Duration max) { return random.Uniform() * max; }

  // Tells the laws that the next step may take longer.
  void Disturb() { laws.Tell(Disturbed{}); }

  // Adds two numbers to the digest of the run: the kind of an event, and its
  // object.
  void Note(uint64_t what, uint64_t about);

  // Runs the next event. Returns false if there is none.
  bool RunNext();

  const SimulatedClusterOptions options;
  const Workload workload;
  EventQueue own_events;  // Clock of a cluster that shares it with no other.
  EventQueue& events;
  Random random;           // Generator of all parts but network and disk.
  LawChecker laws;         // Checks every event.
  ProcessTable processes;  // All processes, dead or alive.
  SimulatedHosts hosts;    // Hosts of the processes.
  const Execute execute;
  uint64_t digest = 0;       // Digest of all events, see Note.
  int64_t steps_wanted = 0;  // Number of steps that RunSteps waits for.
  // Last step that any worker had done when it left.
  int64_t last_step = kInitialRound;
};

}  // namespace nereus
