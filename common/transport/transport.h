#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/hello.h"
#include "common/protocol/machine.h"
#include "common/protocol/peer.h"
#include "common/transport/connection.h"

namespace nereus {

// Bytes exchanged with one peer so far. Frame headers count, hellos do not.
struct TrafficCount {
  PeerId peer;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

// Moves frames between this process and its peers. Knows nothing of rounds.
//
// There is at most one connection per peer. Workers connect to servers. Of two
// workers or two servers, the one with the higher rank connects, if they
// exchange frames. The frames of one connection arrive whole, in the order in
// which they leave, and once, or the connection ends.
//
// Send does not copy a payload: each queued frame holds a reference to it until
// the kernel, or the shared memory, has its bytes. So a slow peer costs little
// memory here, but the payloads that wait for it must not be overwritten.
//
// Bytes move in Poll, Flush and Shutdown only. An owner that does not call Poll
// for long stops its peers: they fill the buffers of their sockets and then
// wait.
//
// Send, Wake and traffic are thread-safe. Poll, and all other methods, belong
// to one thread at a time; every call of the handler happens in Poll.
class Transport {
 public:
  virtual ~Transport() = default;

  // Returns the port at which this process listens.
  virtual int port() const = 0;

  // Sets the identity and the peers of this process in a new epoch. Peers that
  // connect before the first roster are told to try again. Open connections
  // stay open.
  virtual void SetRoster(const Hello& self, Roster roster) = 0;

  // Connects to `peer` at "host:port" in the background. Repeats failed
  // attempts, with growing pauses, up to the limits. Calls the handler's
  // OnConnected on success. Calls OnDisconnected at a limit, or if `peer`
  // refuses for good. Has no effect while `peer` is connected.
  virtual void Connect(PeerId peer, const std::string& address,
                       const ConnectLimits& limits) = 0;

  // Ends the connection to `peer`, or the attempt to make one. Drops the frames
  // that are queued for `peer`, and its frames that are not delivered yet. The
  // handler is not called; the peer sees a lost connection. REQUIRES: this
  // thread calls Poll.
  virtual void Disconnect(PeerId peer) = 0;

  // Queues `frame` for `to`. Without a connection, the frame waits for one. For
  // a frame that goes through a socket, fills in the checksum of the payload if
  // the field is 0. Frames through shared memory have no checksum.
  virtual void Send(PeerId to, const Frame& frame) = 0;

  // Announces that this thread calls Poll from now on. Send on this thread then
  // takes no lock and does not call Wake.
  virtual void MoveToThisThread() {}

  // Waits until something has happened, Wake was called or `timeout` has
  // passed. Hands frames that have arrived to `handler`. It calls OnHeader
  // first, which names the landing of the payload, and OnFrame once the frame
  // is complete and its checksum, if any, is verified.
  //
  // An error from OnHeader, or in a frame, ends that connection with one line
  // in the log and OnDisconnected. A frame for which OnHeader returns kWait is
  // announced again in the next call; the frames behind it wait too.
  virtual void Poll(absl::Duration timeout, FrameHandler& handler) = 0;

  // Passes on queued frames to the kernel or the shared memory, without
  // waiting. For an owner that will not call Poll for a while. REQUIRES: this
  // thread calls Poll; the handler may call it.
  virtual void Flush() {}

  // Ends the Poll under way, or the next one.
  virtual void Wake() = 0;

  // Returns the traffic with all peers that were ever connected, by peer.
  virtual std::vector<TrafficCount> traffic() const = 0;

  // Stops listening. Waits, at most for `timeout`, until all queued frames have
  // been handed to the kernel or the shared memory and the peers have closed
  // their side. Then closes all connections. Poll and the handler must not be
  // running.
  virtual void Shutdown(absl::Duration timeout) = 0;
};

}  // namespace nereus
