#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/protocol/frame.h"

namespace nereus {

// Limits of the attempts to connect to a peer. At a limit the link is given up:
// no further attempt is made, and the handler hears OnDisconnected.
struct ConnectLimits {
  // Time of SteadyNow after which no attempt is made, but for the first one. An
  // attempt under way then ends, at the earliest 0.2 s after its start.
  absl::Time deadline;
  // Longest time without any TCP connection, from the first to the last of
  // consecutive attempts; then the link is given up. Failures of the name
  // server do not count. Once TCP has connected, only the deadline applies.
  absl::Duration unreachable_max = absl::InfiniteDuration();
};

// Connection to one peer, as PeerLinks sees it. The peer may have dialled this
// process, or this process the peer. Connection is an interface, so that tests
// of PeerLinks need no sockets.
//
// Not thread-safe.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues `frame`. Frames leave in the order of SendQueue. REQUIRES: the link
  // is open. The peer may have ended the connection: then the frame is lost.
  virtual void Send(Frame frame) = 0;

  // Ends the connection at once and drops the queued frames. The kernel may
  // still send bytes that it already has. Does nothing if the connection is
  // closed already.
  virtual void Close() = 0;

  // Does what Close does, and also drops the bytes that the kernel has not sent
  // yet. The peer sees an error instead of an orderly end.
  virtual void Abort() = 0;

  // True if the peer has closed its side or the connection is lost. Bytes that
  // arrived before the end may still be unread.
  virtual bool HasEnded() const = 0;

  // "host:port" of the peer, for messages.
  virtual const std::string& address() const = 0;
};

}  // namespace nereus
