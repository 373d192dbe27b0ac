#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "absl/time/time.h"
#include "common/network/simulated_network.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"
#include "tests/simulation/simulated_connections.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_partition.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Sessions between members and the coordinator. The messages of a session
// arrive in order, each after a drawn delay. Each message is converted to
// Protobuf and back.
//
// The two ends of a session hear of its end at different times. In between, one
// end may send messages into a session that the other end has given up. So
// production code must not rely on a message that it has only sent.
class SimulatedSessions {
 public:
  // No pointer is owned; all must outlive this.
  SimulatedSessions(SimulatedWorld* world, SimulatedPartition* partition,
                    SimulatedCoordinator* coordinator,
                    SimulatedConnections* connections);

  // Opens a session for a process, now or as soon as the coordinator can be
  // reached.
  void Open(ProcessId process);
  // Sends a heartbeat of a process, now and at each later interval. Sends none
  // while the process is paused or its Pulse forbids it.
  void Beat(ProcessId process);

  // Sends a heartbeat of a member that is in an epoch, if it has a session.
  void SendHeartbeatOf(ProcessId process);
  // Sends a message of a member. Drops the message if the member has no
  // session.
  void ToCoordinator(ProcessId process, const MemberMessage& message);
  // Carries out an action of the coordinator: sends a message, or ends a
  // session.
  void CarryOut(const CoordinatorAction& action);

  // Breaks a session. Messages under way are lost. The two ends hear of the
  // break after the delays `member` and `coordinator`.
  void Break(ProcessId process, absl::Duration member,
             absl::Duration coordinator);
  // Breaks a session, with drawn delays.
  void Break(ProcessId process);
  // Breaks the session at its next message other than a heartbeat: the
  // coordinator handles the message, and its answer is lost.
  void LoseNextAnswer(ProcessId process) { ends_[process].loses_answer = true; }
  // Ends the session of a process that has died.
  void OnDeath(ProcessId process);
  // Ends all sessions: the coordinator has died.
  void OnCoordinatorDeath();

 private:
  using Task = std::function<void()>;

  // Member's end of its sessions.
  struct End {
    std::optional<SessionId> session;  // Open session, if any.
    // Arrival times of the last message to the coordinator and of the last one
    // from it. Later messages arrive no earlier.
    absl::Time sent_at;
    absl::Time told_at;
    bool loses_answer = false;  // See LoseNextAnswer.
    absl::Time opened_at;       // Time at which `session` was opened.
  };

  absl::Duration DrawDelay();
  // Hands a message that has arrived to the coordinator.
  void Tell(SessionId session, const MemberMessage& message);
  // Runs `task` at the time at which a message sent now reaches the member.
  void AtMember(ProcessId process, Task task);
  // Hands a message that has arrived to the member.
  void Hear(ProcessId process, SessionId session,
            const CoordinatorMessage& message);
  void SendToProcess(const SendToMember& send);
  // Tells the laws that a process counts as dead.
  void TellDeath(ProcessId process, const Refusal& refusal);
  void EndAtMember(ProcessId process, SessionId session);
  void EndAtCoordinator(SessionId session);
  // True if the session is broken: no message arrives in it any more.
  bool IsCut(SessionId session) const { return cut_.contains(session); }

  SimulatedWorld* const world_;
  SimulatedPartition* const partition_;
  SimulatedCoordinator* const coordinator_;
  SimulatedConnections* const connections_;
  std::map<ProcessId, End> ends_;        // Members' ends.
  std::map<SessionId, ProcessId> open_;  // Sessions open at the coordinator.
  std::set<SessionId> cut_;              // Sessions that are broken.
  SessionId next_session_ = 0;           // Number of the next session.
};

}  // namespace nereus
