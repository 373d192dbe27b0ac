#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/protocol/machine.h"
#include "common/protocol/membership.h"
#include "tests/simulation/simulated_connections.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_sessions.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Supervisor of a simulated cluster: starts and ends processes. Like a cluster
// manager, it replaces a process that ended by itself, such as a worker that
// counted as dead or a server that the coordinator dropped. It does not replace
// a process that a fault script has killed.
class Supervisor {
 public:
  // No pointer is owned; all must outlive this.
  Supervisor(SimulatedWorld* world, SimulatedConnections* connections,
             SimulatedSessions* sessions,
             const SimulatedCoordinator* coordinator);

  // Starts a worker. `name`: name of the worker that it replaces, or empty for
  // a new name. Returns the process, as all Start functions do.
  ProcessId StartWorker(const std::string& name = "");
  // Starts a server, in the place of a dead one.
  ProcessId StartShard(int shard);
  // Starts a process without a place in the job. It has another version, job or
  // model, or it is one server too many.
  ProcessId StartStranger();

  // Kills a process: its connections break, and its session ends.
  void Kill(ProcessId id);
  // Kills all processes of a host in one instant. REQUIRES: host >= 0.
  void KillHost(int host);
  // Kills a server that died in the middle of a file, and replaces it.
  void ReplaceShard(SimulatedProcess& server);
  // Ends a process whose membership has ended, and replaces it. A worker that
  // left or was never admitted is not replaced, and no stranger is.
  void OnEnd(SimulatedProcess& process, const absl::Status& outcome);

 private:
  // Returns the request with which the next process joins.
  JoinRequest MakeRequest(Role role, int shard) const;
  ProcessId Launch(JoinRequest request, bool stranger);
  // Makes the machine of a process that the coordinator has admitted.
  std::unique_ptr<Machine> MakeMachine(SimulatedProcess& process,
                                       const EpochStart& start, Outbox& out);
  // Ends the run if the job has failed, or if a process is refused before the
  // job has begun.
  void NoteOutcome(const SimulatedProcess& process,
                   const absl::Status& outcome);
  void StartShardSoon(int shard);
  int started_ = 0;  // Number of workers that were started.

  SimulatedWorld* const world_;
  SimulatedConnections* const connections_;
  SimulatedSessions* const sessions_;
  const SimulatedCoordinator* const coordinator_;
};

}  // namespace nereus
