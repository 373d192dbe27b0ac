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
  // Longest time without an answer, once a coordinator has answered.
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
// The queue of messages has no limit but what its owner sends. It takes
// messages only while a session is open, and is emptied before the next
// session.
class SessionClient {
 public:
  // Callbacks, on threads of this object. None may wait, or destroy it.
  struct Events {
    // Called when an attempt to open a session begins. Messages that are sent
    // from now on are for this session, and wait until it is open.
    std::function<void()> opened;
    // Called for each message of the coordinator, in order.
    std::function<void(const CoordinatorMessage& message)> message;
    // Called about once a second in a session that has its JoinRequest or
    // Resume. Returns the heartbeat to send. Returns nothing if the member does
    // not work: then none is sent.
    std::function<std::optional<Heartbeat>()> heartbeat;
    // Called when there will be no further session, unless Stop was called.
    // kUnavailable: no coordinator answers at the address, or no longer. Any
    // other code: the error of the process there.
    std::function<void(const absl::Status& why)> failed;
  };

  // Does nothing before Start.
  SessionClient(SessionClientOptions options, Events events);

  // Opens the first session in the background. Called at most once.
  void Start();

  // Ends the session. No callback runs afterwards.
  ~SessionClient();

  // Queues a message for the open session. Drops the message if no session is
  // open. A session begins with one JoinRequest or Resume. Earlier messages are
  // dropped. So is a second JoinRequest or Resume, which answers an earlier
  // call of `opened` too late.
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
