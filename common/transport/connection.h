#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/protocol/frame.h"

namespace nereus {

// Limits of the attempts to connect to a peer.
struct ConnectLimits {
  // Time of SteadyNow at which the peer is given up.
  absl::Time deadline;
  // Time after which the peer is given up if no attempt has reached a process
  // that listens at the address. A process that listens and does not answer
  // lives, and is not given up for this. Infinite: the deadline alone holds.
  absl::Duration unreachable_max = absl::InfiniteDuration();
};

// Connection to one peer, as PeerLinks sees it. This process or the peer has
// dialled. An interface, so that tests of PeerLinks need no sockets.
//
// Not thread-safe.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues `frame`, in the order of SendQueue. REQUIRES: the connection is
  // open.
  virtual void Send(Frame frame) = 0;

  // Ends the connection at once and drops the queued frames. Does nothing if
  // the connection is closed already.
  virtual void Close() = 0;

  // Closes the connection so that the peer sees an error. Bytes that the kernel
  // has not sent yet are dropped.
  virtual void Abort() = 0;

  // True if the peer has closed its side or the connection is lost. Earlier
  // bytes may still be unread.
  virtual bool HasEnded() const = 0;

  // "host:port" of the peer, for messages.
  virtual const std::string& address() const = 0;
};

}  // namespace nereus
