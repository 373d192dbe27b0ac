#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/hello.h"
#include "common/protocol/machine.h"
#include "common/protocol/peer.h"

namespace nereus {

// Bytes exchanged with one peer, frame headers included, hellos not.
struct TrafficCount {
  PeerId peer;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

// Moves frames between this process and its peers; knows nothing of rounds.
//
// One connection per peer and direction of set-up: workers connect to shards, a
// worker to those of lower rank. Frames to one peer arrive whole, in order,
// once, or the connection ends. Frames queue per peer without a copy (a
// reference to the payload each), and few are under way inside the transport: a
// slow peer costs no memory here, and its payload stays referenced
// until the kernel has taken its bytes. What moves may do so in Poll alone.
//
// Send, Wake and traffic are thread-safe; Poll belongs to one thread at a time,
// on which every call of the handler happens.
class Transport {
 public:
  virtual ~Transport() = default;

  // The port it listens at.
  virtual int port() const = 0;

  // Who this process and its peers are, in a new epoch. Connections that come
  // in before the first one are told to come again; those that are there stay.
  virtual void SetRoster(const Hello& self, Roster roster) = 0;

  // Connects to `peer` at "host:port" in the background: with backoff until
  // `deadline` while nobody answers, then the handler hears OnConnected or
  // OnDisconnected.
  virtual void Connect(PeerId peer, const std::string& address,
                       absl::Time deadline) = 0;

  // Ends the connection to `peer`, or the attempt to make one, and drops what
  // is queued for it and what has arrived from it; the handler hears nothing of
  // it. From the thread of Poll only.
  virtual void Disconnect(PeerId peer) = 0;

  // Queues `frame` for `to`; kept until there is a connection. Where payloads
  // have checksums (all but those that go through memory), it is filled in
  // here, unless it is not 0 already.
  virtual void Send(PeerId to, const Frame& frame) = 0;

  // From now on this thread calls Poll: what it sends takes the short way.
  virtual void MoveToThisThread() {}

  // Waits until something happened, Wake was called or `timeout` passed; hands
  // all that has arrived to `handler`. For each frame: handler.OnHeader says
  // where its payload goes, then, checksum verified, handler.OnFrame. An error
  // from OnHeader or in a frame ends that connection with one log line, and
  // OnDisconnected. A frame that is to wait is announced again in the next
  // call, and those behind it wait in the connection.
  virtual void Poll(absl::Duration timeout, FrameHandler& handler) = 0;

  // Hands on what is queued, as far as that goes without waiting, since Poll
  // will not be called for a while. From its thread, and from the handler.
  virtual void Flush() {}

  virtual void Wake() = 0;

  virtual std::vector<TrafficCount> traffic() const = 0;

  // Waits until everything queued has been handed to the kernel, `timeout` at
  // most; then closes all connections and stops listening. Poll, and the
  // handler, must not be running.
  virtual void Shutdown(absl::Duration timeout) = 0;
};

}  // namespace nereus
