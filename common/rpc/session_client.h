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

  // Longest search for a coordinator, if none has ever answered.
  absl::Duration connect_timeout = absl::Seconds(60);
  // Longest search for a coordinator after a session has ended.
  absl::Duration patience = absl::Seconds(10);
};

// Sessions of a member with its coordinator. There is one session at a time;
// when it breaks, the next one is opened. Member decides which messages to
// send. This class sends them, and heartbeats. Thread-safe.
//
// Messages on a session that breaks may be lost, in both directions. The hook
// `opened` must send them again (Member::OnSession). Otherwise the coordinator
// might wait for them for ever.
//
// The queue of messages has no limit: the caller of Send bounds it. Messages
// that a session has not sent when it ends are dropped.
class SessionClient {
 public:
  // Callbacks, on threads of this object. None may wait, or destroy it.
  struct Events {
    // Called when an attempt to open a session begins. Messages that are sent
    // from now on are for this session, and wait until it is open.
    std::function<void()> opened;
    // Called for each message of the coordinator, in order.
    std::function<void(const CoordinatorMessage& message)> message;
    // Called about once a second, once the session's JoinRequest or Resume is
    // queued. Returns the heartbeat to send. Returns nothing, and none is sent,
    // if the driver of the member stands still (Pulse).
    std::function<std::optional<Heartbeat>()> heartbeat;
    // Called when this object gives up, and opens no further session. Not
    // called after Stop. `why`: kUnavailable, no coordinator has answered for
    // connect_timeout or patience; kUnimplemented, another kind of process
    // answers at the address; any other code, the error with which the
    // coordinator has ended the session.
    std::function<void(const absl::Status& why)> failed;
  };

  // Does nothing before Start.
  SessionClient(SessionClientOptions options, Events events);

  // Opens the first session in the background. Called at most once.
  void Start();

  // Ends the session. No callback runs afterwards.
  ~SessionClient();

  // Queues a message for the session of the last call of `opened`. Drops the
  // message if that session has ended. The first message of a session must be a
  // JoinRequest or Resume: Send drops any other message before it. Send also
  // drops a second JoinRequest or Resume, which was meant for an earlier
  // session.
  void Send(const MemberMessage& message);

  // Opens no further session. The open one goes on, and its callbacks may still
  // run.
  void Stop();

 private:
  // Hides gRPC from the callers of this header.
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
