#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

struct SessionClientOptions {
  std::string coordinator_address;  // "host:port".

  // How long to look for a coordinator that has never answered, and how long
  // to do without one that has; retrying with backoff.
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration patience = absl::Seconds(10);
};

// A member's line to its coordinator: a session, and another one when it
// breaks. Thread-safe.
class SessionClient {
 public:
  // Called on threads of this object's; none may wait, or destroy it.
  struct Events {
    // A session is open: what is sent from now on is for it.
    std::function<void()> opened;
    std::function<void(const CoordinatorMessage& message)> message;
    // What to say about once a second; nothing: the member does not work.
    std::function<std::optional<Heartbeat>()> heartbeat;
    // There will be no further session. kUnavailable: nobody answers at the
    // address, or not any more; else what the process there said.
    std::function<void(const absl::Status& why)> failed;
  };

  SessionClient(SessionClientOptions options, Events events);

  // Opens the first session in the background. Once.
  void Start();

  // Ends the session. No event comes afterwards.
  ~SessionClient();

  // Queues a message for the open session; dropped without one, and before the
  // JoinRequest or Resume that begins it. So no heartbeat goes before it
  // either.
  void Send(const MemberMessage& message);

  // Opens no further session; events may still come.
  void Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
