#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"

namespace nereus {

// Options of a SessionClient.
struct SessionClientOptions {
  // "host:port" of the coordinator's control port.
  std::string coordinator_address;

  // Longest search for a coordinator that has never answered; attempts back
  // off.
  absl::Duration connect_timeout = absl::Seconds(60);
  // Longest time without a coordinator that has answered before.
  absl::Duration patience = absl::Seconds(10);
};

// Sessions of a member with its coordinator: one at a time, and another one
// when it breaks. Member decides which messages to send; this class sends them,
// and heartbeats. Thread-safe.
//
// Messages on a session that breaks may be lost, in both directions. `opened`
// is the place to say them again (Member::OnSession); a member that does not
// would leave the coordinator waiting.
//
// Bounded by what its owner sends: messages wait in a queue only while a
// session is open, and the queue is emptied when the next one opens.
class SessionClient {
 public:
  // Callbacks, on threads of this object. None may wait, or destroy it.
  struct Events {
    // Called when a session opens: messages sent from now on are for it.
    std::function<void()> opened;
    // Called for each message of the coordinator, in order.
    std::function<void(const CoordinatorMessage& message)> message;
    // Called about once a second for the heartbeat to send; nothing: the member
    // does not work, so none is sent.
    std::function<std::optional<Heartbeat>()> heartbeat;
    // Called when there will be no further session. kUnavailable: no
    // coordinator answers at the address, or no longer; any other: the error of
    // the process there.
    std::function<void(const absl::Status& why)> failed;
  };

  // Does nothing before Start.
  SessionClient(SessionClientOptions options, Events events);

  // Opens the first session in the background. Once.
  void Start();

  // Ends the session. No event comes afterwards.
  ~SessionClient();

  // Queues a message for the open session. It is dropped without one. A session
  // begins with one JoinRequest or Resume: all before it is dropped, and so is
  // a second one, of an owner that heard of an earlier session too late.
  void Send(const MemberMessage& message);

  // Opens no further session; events may still come from the open one.
  void Stop();

 private:
  // Hides gRPC from the callers of this header.
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
