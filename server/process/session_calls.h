#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/coordinator/coordinator.h"

namespace nereus {

class SessionCall;

// Open sessions of the Coordinator service. Each session is one gRPC call of a
// member.
//
// Not thread-safe: the owner holds its lock in each call. The owner must call
// Forget when it gets `ended`. Messages to a session that has ended are
// dropped.
class SessionCalls {
 public:
  using Reactor =
      grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>;

  // `heard` is called for each message of a session. `ended` is called once for
  // each session, when its call is over, whichever side ended it. Both run on
  // threads of gRPC, without the owner's lock.
  SessionCalls(std::function<void(SessionId, const v1::MemberMessage&)> heard,
               std::function<void(SessionId)> ended);

  // Opens a session. Returns its reactor: the object whose callbacks gRPC calls
  // for this call. After EndAll, the session ends at once.
  Reactor* Open(grpc::CallbackServerContext* context);

  // True if the session was opened and is not forgotten.
  bool Has(SessionId session) const { return calls_.contains(session); }

  // Queues a message. Drops it if there is no such session.
  void Write(SessionId session, v1::CoordinatorMessage message);
  // Ends a session once its queued messages have been written.
  void End(SessionId session);

  // Queues a message to every session.
  void WriteAll(const v1::CoordinatorMessage& message);

  // Ends all sessions, and from now on each new session at once, for the reason
  // `why`. By default the process shuts down.
  void EndAll(absl::string_view why = "shutting down");

  // Removes a session. REQUIRES: its call is over.
  void Forget(SessionId session) { calls_.erase(session); }

 private:
  const std::function<void(SessionId, const v1::MemberMessage&)> heard_;
  const std::function<void(SessionId)> ended_;
  SessionId next_ = 0;  // Id of the next session.
  // Calls that are not over, by session. A call deletes itself after `ended`,
  // when gRPC has finished with it.
  std::map<SessionId, SessionCall*> calls_;
  // Reason of EndAll; empty: it was not called.
  std::string stopping_;
};

}  // namespace nereus
