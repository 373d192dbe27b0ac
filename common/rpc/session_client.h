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

  // Time, from the constructor on, for which attempts to open the first session
  // may fail. Then the client gives up.
  absl::Duration connect_timeout = absl::Seconds(60);
  // Time after the end of a session for which attempts to open the next session
  // may fail. Then the client gives up.
  absl::Duration patience = absl::Seconds(10);
};

// Client of the coordinator, in the process of a member, or of a process that
// gathers before it joins. Keeps one session open: when a session breaks, opens
// the next one. The class Member, or LobbyLedger, decides which messages to
// send; SessionClient sends these messages and the heartbeats. Thread-safe.
//
// When a session breaks, messages of both sides may be lost. So the callback
// `opened` must send the messages again (Member::OnSession,
// LobbyLedger::OnSession). Otherwise the coordinator might wait for a lost
// message for ever.
//
// The queue of messages has no limit: the caller of Send bounds it. Messages
// that a session has not sent when it ends are dropped.
class SessionClient {
 public:
  // Callbacks, which run on threads of the SessionClient. A callback must not
  // block, and must not destroy the SessionClient.
  struct Events {
    // Called when an attempt to open a session begins. Messages that Send gets
    // from now on are for this session, and wait until it is open.
    std::function<void()> opened;
    // Called for each message of the coordinator, in order.
    std::function<void(const CoordinatorMessage& message)> message;
    // Called about once a second, but not before the session's first message is
    // queued. Returns the heartbeat to send. Returns nothing if the driver of
    // the member stands still (Pulse), or if the process is no member; then no
    // heartbeat is sent.
    std::function<std::optional<Heartbeat>()> heartbeat;
    // Called when the SessionClient gives up: it opens no further session. Not
    // called if the last session ends after Stop. `why`: kUnavailable, no
    // coordinator has answered for connect_timeout or patience; kUnimplemented,
    // another kind of process answers at the address; kInvalidArgument, the
    // coordinator has sent a message that this version does not know; any other
    // code, the error of gRPC, or of a server that does not coordinate the job.
    // (A coordinator that refuses the member sends a Refusal.)
    std::function<void(const absl::Status& why)> failed;
  };

  // Makes a client that does nothing until Start.
  SessionClient(SessionClientOptions options, Events events);

  // Opens the first session in the background. Called at most once.
  void Start();

  // Ends the session. No callback runs afterwards.
  ~SessionClient();

  // Queues a message for the session of the last call of `opened`. Drops the
  // message if that session has ended. The first message of a session must be a
  // JoinRequest or Resume: Send drops any other message before it, except
  // LobbyGather, which may come at any time. Send also drops a second
  // JoinRequest or Resume: a caller that is late may answer two calls of
  // `opened` in one session.
  void Send(const MemberMessage& message);

  // Opens no further session. An open session goes on, and its callbacks may
  // still run.
  void Stop();

 private:
  // Hides gRPC from the callers of this header.
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
