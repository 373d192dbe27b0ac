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

// The things that all parts of a simulated cluster share: virtual time, chance,
// the processes and the judge. Every part draws from the one `random` and
// schedules on the one `events`; the same seed then gives the same run to the
// last event. A part with a clock or a generator of its own would break that.
struct SimulatedWorld {
  // Carries out what a process's machine has asked for.
  using Execute = std::function<void(SimulatedProcess& process, Outbox& out)>;

  SimulatedWorld(const SimulatedClusterOptions& job, Workload what,
                 const ClusterView* view, Execute carry_out);

  // Returns a time drawn evenly from [0, max].
  absl::Duration Draw(absl::Duration max) { return random.Uniform() * max; }

  // Notes a fault, or an excuse: what happens next may take its time.
  void Disturb() { laws.Tell(Disturbed{}); }

  // Adds to the digest of the run: a kind of event, and what it is about.
  void Note(uint64_t what, uint64_t about);

  // Runs the next event. False: there is none.
  bool RunNext();

  const SimulatedClusterOptions options;
  const Workload workload;
  EventQueue events;
  Random random;           // All chance, but that of network and disk.
  LawChecker laws;         // Hears of everything.
  ProcessTable processes;  // Every process, dead or alive.
  SimulatedHosts hosts;    // Hosts of the processes.
  const Execute execute;
  uint64_t digest = 0;                // Digest of all events, see Note.
  int64_t steps_wanted = 0;           // Steps that workers are to do, in all.
  int64_t last_step = kInitialRound;  // Last step that a worker left after.
};

}  // namespace nereus
