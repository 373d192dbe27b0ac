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

// Starts and ends the processes of a simulated cluster. As a cluster manager
// does, it replaces a process that ended by itself: a worker that was counted
// as dead, or a server that was told to go. A process that a fault script kills
// stays dead.
class Supervisor {
 public:
  // No pointer is owned; all must outlive this.
  Supervisor(SimulatedWorld* world, SimulatedConnections* connections,
             SimulatedSessions* sessions,
             const SimulatedCoordinator* coordinator);

  // Starts a worker. `name`: the name of the worker that it replaces, or empty
  // for a name of its own. Returns the process, as all Start calls do.
  ProcessId StartWorker(const std::string& name = "");
  // Starts a server, in the place of a dead one.
  ProcessId StartShard(int shard);
  // Starts a process without a place in the job: of another version, job or
  // model, or a server too many.
  ProcessId StartStranger();

  // Kills a process: its connections break, and its session ends.
  void Kill(ProcessId id);
  // Kills all processes of a host in one instant. REQUIRES: host >= 0.
  void KillHost(int host);
  // Kills a server that died in the middle of a file, and replaces it.
  void ReplaceShard(SimulatedProcess& server);
  // Takes note that the membership of a process has ended: ends the process,
  // and starts another one in its place unless it left or was never admitted.
  void OnEnd(SimulatedProcess& process, const absl::Status& outcome);

 private:
  // Returns what the next process says when it joins.
  JoinRequest MakeRequest(Role role, int shard) const;
  ProcessId Launch(JoinRequest request, bool stranger);
  // Makes the machine of a process that the coordinator has admitted.
  std::unique_ptr<Machine> MakeMachine(SimulatedProcess& process,
                                       const EpochStart& start, Outbox& out);
  // Ends the run if the job has failed, or cannot begin.
  void NoteOutcome(const SimulatedProcess& process,
                   const absl::Status& outcome);
  void StartShardSoon(int shard);

  SimulatedWorld* const world_;
  SimulatedConnections* const connections_;
  SimulatedSessions* const sessions_;
  const SimulatedCoordinator* const coordinator_;
};

}  // namespace nereus
