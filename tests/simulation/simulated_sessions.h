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

// The sessions between members and the coordinator. A session is a stream: its
// messages arrive in order, each after a drawn delay, and are read back from
// the bytes that would be sent.
//
// The two ends of a session hear of its end each in its own time. In between,
// one end talks into a session that the other has given up: production code
// must not rely on what it has only sent.
class SimulatedSessions {
 public:
  // No pointer is owned; all must outlive this.
  SimulatedSessions(SimulatedWorld* world, SimulatedPartition* partition,
                    SimulatedCoordinator* coordinator,
                    SimulatedConnections* connections);

  // Opens a session for a process, now or as soon as the coordinator can be
  // reached.
  void Open(ProcessId process);
  // Sends a heartbeat of a process now, and regularly from then on.
  void Beat(ProcessId process);

  // Sends a message of a member. Dropped if it has no session.
  void ToCoordinator(ProcessId process, const MemberMessage& message);
  // Carries out an action of the coordinator: sends a message, or ends a
  // session.
  void CarryOut(const CoordinatorAction& action);

  // Breaks a session: messages under way are lost, and the two ends hear of it
  // after these delays.
  void Break(ProcessId process, absl::Duration member,
             absl::Duration coordinator);
  // Breaks a session, with drawn delays.
  void Break(ProcessId process);
  // Breaks the session when the coordinator has handled the next message other
  // than a heartbeat, before its answer is out.
  void LoseNextAnswer(ProcessId process) { ends_[process].loses_answer = true; }
  // Ends the session of a process that has died.
  void OnDeath(ProcessId process);
  // Ends all sessions: the coordinator has died.
  void OnCoordinatorDeath();

 private:
  using Task = std::function<void()>;

  // The member's end of its sessions.
  struct End {
    std::optional<SessionId> session;  // Open session, if any.
    // Times at which the last message to the coordinator, and the last one from
    // it, arrive: messages keep their order.
    absl::Time sent_at;
    absl::Time told_at;
    bool loses_answer = false;  // See LoseNextAnswer.
  };

  absl::Duration DrawDelay();
  // Hands a message that has arrived to the coordinator.
  void Tell(SessionId session, const MemberMessage& message);
  // Runs `task` when a message that is sent now would reach the member.
  void AtMember(ProcessId process, Task task);
  // Hands a message that has arrived to the member.
  void Hear(ProcessId process, SessionId session,
            const CoordinatorMessage& message);
  void SendToProcess(const SendToMember& send);
  void EndAtMember(ProcessId process, SessionId session);
  void EndAtCoordinator(SessionId session);
  // True if nothing arrives in this session any more.
  bool IsCut(SessionId session) const { return cut_.contains(session); }

  SimulatedWorld* const world_;
  SimulatedPartition* const partition_;
  SimulatedCoordinator* const coordinator_;
  SimulatedConnections* const connections_;
  std::map<ProcessId, End> ends_;        // The members' ends.
  std::map<SessionId, ProcessId> open_;  // Sessions that the coordinator has.
  std::set<SessionId> cut_;              // Sessions that are broken.
  SessionId next_session_ = 0;           // Number of the next session.
};

}  // namespace nereus
