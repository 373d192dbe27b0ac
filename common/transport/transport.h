#pragma once

#include <cstdint>
#include <optional>
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

// Bytes exchanged with one peer so far. Frame headers count; the transport's
// own frames (hello, refusal, alive) do not.
struct TrafficCount {
  PeerId peer;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Time in which frames waited because the network was slower than this
  // process, as of the last MeasureLinks; nothing: they do not go through the
  // network.
  std::optional<absl::Duration> busy;
};

// Connections of a process.
struct ConnectionCounts {
  // Numbers of open connections whose frames go through sockets, and of those
  // whose frames go through shared memory. As of the last MeasureLinks.
  int sockets = 0;
  int memories = 0;
  // Number of connections so far that were refused in the handshake: of
  // processes that are not Nereus or another build of it, and second ones of
  // a peer. Wrong tokens do not count, as they may be meant for an earlier
  // process.
  int64_t refused_strangers = 0;
  // Number of connections to peers so far that were ended because of a frame
  // that the peer may not send.
  int64_t refused_peers = 0;
};

// Moves frames between this process and its peers, and calls a handler
// (FrameHandler) that receives them. Knows nothing of rounds.
//
// There is at most one connection per peer. Callers of Connect follow a rule:
// workers dial servers, and of two workers or two servers that exchange frames,
// the one with the higher rank dials. The frames of one connection arrive
// whole, once, and in the order in which they left. If one cannot, the
// connection ends.
//
// Send does not copy a payload: each queued frame holds a reference to it until
// the kernel, or the shared memory, has its bytes. So a slow peer costs little
// memory here, but owners must not overwrite payloads that wait for it.
//
// Bytes move in Poll, Flush and Shutdown only. If the owner of the transport
// does not call Poll for long, its peers stand still: they fill the buffers of
// their sockets, and then wait.
//
// Send, Wake, traffic and connections are thread-safe. One thread at a time may
// call Poll and the other methods. Every call of the handler happens in Poll.
class Transport {
 public:
  virtual ~Transport() = default;

  // Returns the port at which this process listens.
  virtual int port() const = 0;

  // Sets the identity and the peers of this process in a new epoch. Before the
  // first roster, this process tells peers that connect to try again. Open
  // connections stay open.
  virtual void SetRoster(const Hello& self, Roster roster) = 0;

  // Connects to `peer` at "host:port" in the background. Repeats failed
  // attempts, with growing pauses, up to the limits. Calls the handler's
  // OnConnected on success. Calls OnDisconnected at a limit, or if `peer`
  // refuses for good. Has no effect while `peer` is connected.
  virtual void Connect(PeerId peer, const std::string& address,
                       const ConnectLimits& limits) = 0;

  // Ends the connection to `peer`, or the attempt to make one. Drops the frames
  // that are queued for `peer`, and frames from `peer` that are not delivered
  // yet. Does not call the handler. The peer sees a lost connection. REQUIRES:
  // the calling thread is the thread that calls Poll.
  virtual void Disconnect(PeerId peer) = 0;

  // Queues `frame` for `to`. Without a connection, the frame waits for one. If
  // the frame goes through a socket and its checksum field is 0, the transport
  // fills in the checksum of the payload. Frames through shared memory have no
  // checksum.
  virtual void Send(PeerId to, const Frame& frame) = 0;

  // Announces that the calling thread calls Poll from now on. Send on this
  // thread then does not call Wake, and takes no lock unless frames of other
  // threads wait.
  virtual void MoveToThisThread() {}

  // Waits until a frame or another event has arrived, Wake was called or
  // `timeout` has passed. Hands frames that have arrived to `handler`: calls
  // OnHeader, which names the landing of the payload, and then OnFrame, once
  // the frame is complete and its checksum, if any, is verified.
  //
  // If OnHeader returns an error, or a frame is invalid, the frame's connection
  // ends, with one line in the log and a call of OnDisconnected. If OnHeader
  // returns kWait, the next Poll announces the frame again; later frames of
  // that peer wait too.
  virtual void Poll(absl::Duration timeout, FrameHandler& handler) = 0;

  // Passes queued frames on to the kernel or the shared memory, without
  // waiting. The owner calls this before it does other work than Poll for a
  // while. The handler may call it. REQUIRES: the calling thread is the thread
  // that calls Poll.
  virtual void Flush() {}

  // Makes the Poll under way return without further waiting; if there is none,
  // the next one.
  virtual void Wake() = 0;

  // Sets the time after which a silent connection ends: if nothing has arrived
  // on it for `silence_max`, not even a frame that shows that it works
  // (FrameKind::kAlive). Both ends send such frames about once a second, if
  // nothing else waits, and both must set the same time. The handler hears
  // OnDisconnected, and the peer hears the reason if it can be reached. Time in
  // which this process does not poll counts for two seconds at most, because
  // its peers are not to blame for it. Infinite before the first call.
  virtual void LimitSilence(absl::Duration /*silence_max*/) {}

  // Sends the frames that show that the connections work, if they are due. The
  // owner calls this during work that keeps it from calling Poll for longer
  // than a second. The handler may call it. REQUIRES: the calling thread is the
  // thread that calls Poll.
  virtual void SendAlive() {}

  // Brings TrafficCount::busy of all peers and the numbers of open connections
  // up to date. REQUIRES: the calling thread is the thread that calls Poll.
  virtual void MeasureLinks() {}

  // Returns the traffic with each peer that was ever connected.
  virtual std::vector<TrafficCount> traffic() const = 0;

  // Returns the connections so far.
  virtual ConnectionCounts connections() const = 0;

  // Stops listening. Waits, for `timeout` at most, until the kernel or the
  // shared memory has all queued frames and each peer has closed its side of
  // the connection. Then closes all connections. Poll and the handler must not
  // be running.
  virtual void Shutdown(absl::Duration timeout) = 0;
};

}  // namespace nereus
