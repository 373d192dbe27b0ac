#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/machine.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"
#include "common/transport/socket/frame_writer.h"
#include "common/transport/transport.h"

namespace nereus {

// Bytes exchanged with one peer so far.
struct TrafficCounters {
  std::atomic<int64_t> sent{0};      // Bytes handed to the kernel or the ring.
  std::atomic<int64_t> received{0};  // Bytes of frames delivered or discarded.
  // TrafficCount::busy, in microseconds; -1: no connection has been measured
  // that goes through the network.
  std::atomic<int64_t> busy_us{-1};

  // CountSent and CountReceived count the bytes of one frame with its header.
  // The transport's own frames (hello, refusal, alive) do not count.
  void CountSent(const FrameHeader& header) { sent += Counted(header); }
  void CountReceived(const FrameHeader& header) { received += Counted(header); }
  // Adds to TrafficCount::busy. One thread at a time may call this.
  void AddBlocked(absl::Duration time) {
    busy_us = std::max<int64_t>(busy_us, 0) + absl::ToInt64Microseconds(time);
  }
  std::optional<absl::Duration> busy() const {
    const int64_t us = busy_us;
    return us < 0 ? std::nullopt : std::optional(absl::Microseconds(us));
  }

 private:
  static int64_t Counted(const FrameHeader& header) {
    const bool is_own = header.kind == FrameKind::kHello ||
                        header.kind == FrameKind::kRefusal ||
                        header.kind == FrameKind::kAlive;
    return is_own ? 0 : kFrameHeaderBytes + header.payload_bytes;
  }
};

// Traffic of a transport for each peer, over all its connections so far, and
// the counts of these connections. Thread-safe.
class TrafficTable {
 public:
  // Returns the counters of `peer`. The reference is valid as long as this
  // exists.
  TrafficCounters& CountersOf(PeerId peer) {
    std::lock_guard<std::mutex> lock(mu_);
    return counters_[peer];
  }

  // Returns the traffic with each peer as of now.
  std::vector<TrafficCount> Counts() const {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<TrafficCount> counts;
    for (const auto& [peer, each] : counters_) {
      counts.push_back({peer, each.sent, each.received, each.busy()});
    }
    return counts;
  }

  // Set or count what ConnectionCounts says.
  void SetOpen(int sockets, int memories) {
    std::lock_guard<std::mutex> lock(mu_);
    connections_.sockets = sockets;
    connections_.memories = memories;
  }
  void CountRefusedStranger() {
    std::lock_guard<std::mutex> lock(mu_);
    ++connections_.refused_strangers;
  }
  void CountRefusedPeer() {
    std::lock_guard<std::mutex> lock(mu_);
    ++connections_.refused_peers;
  }
  ConnectionCounts connections() const {
    std::lock_guard<std::mutex> lock(mu_);
    return connections_;
  }

 private:
  mutable std::mutex mu_;
  // These two are guarded by mu_.
  std::map<PeerId, TrafficCounters> counters_;
  ConnectionCounts connections_;
};

// Calls the handler of a transport, and keeps the scratches in which payloads
// wait for the handler.
//
// A frame is announced to the handler before its payload arrives, and delivered
// after it. In between, other calls of the handler may change what it wants to
// do with the frame. So each call of the handler, except OnHeader, changes
// version(). If version() has changed since Announce, the channel must announce
// the frame again before it delivers it.
//
// Not thread-safe. Outside of Poll there is no handler: then frames are
// discarded and other events are dropped.
class Delivery {
 public:
  // Passes all events to `handler` until End. Changes version(), because the
  // handler's state may have changed since the last call.
  void Begin(FrameHandler& handler);
  // Ends the calls of the handler.
  void End() {
    handler_ = nullptr;
    delivered_ = false;
  }

  bool has_handler() const { return handler_ != nullptr; }

  // Number that changes whenever the handler's state may have changed.
  int64_t version() const { return version_; }

  // True if the handler has got a frame, or was told of a link, since Begin.
  // False after End.
  bool delivered() const { return delivered_; }

  // Asks the handler where the payload of a frame goes. Without a handler,
  // discards the frame. Errors: kInvalidArgument, the frame must end its
  // connection.
  absl::StatusOr<Landing> Announce(PeerId from, const FrameHeader& header);

  // Hands a complete frame to the handler. REQUIRES: has_handler().
  void Deliver(PeerId from, const Frame& frame);
  // Tells the handler, if there is one, that a link has opened, or has ended.
  void Connected(PeerId peer);
  void Disconnected(PeerId peer, const absl::Status& reason);

  // Returns a scratch with room for the largest payload. Reuses memory if
  // possible.
  Buffer TakeScratch();
  // Keeps `scratch` for the next TakeScratch, if it has room for the largest
  // payload.
  void GiveBack(Buffer scratch);

 private:
  // Changes version() and sets delivered(): the handler is about to be called.
  void NoteCall();

  FrameHandler* handler_ = nullptr;  // Null outside of Poll.
  int64_t version_ = 0;              // See version().
  bool delivered_ = false;           // See delivered().
  std::vector<Buffer> scratches_;    // Scratches that are not in use.
};

// Path of the frames of one connection. Frames go through the connection's
// socket (SocketChannel), or through memory that both processes share, with the
// socket as the bell (MemoryChannel). The channel passes arriving frames to the
// Delivery. Receive returns events that concern the whole connection, and the
// channel's owner acts on them.
//
// A channel works in turns: a call of Receive or Write moves about 2 MiB at
// most, so that other connections do not wait long.
//
// Not thread-safe. The handler may stop the channel (Stop) while Receive runs,
// but must not destroy it.
class Channel {
 public:
  // Reason why a call of Receive has ended.
  struct Received {
    enum class Kind {
      // Nothing for the channel's owner to do. All received frames are
      // delivered, or the channel was stopped, or HasWork() tells the owner
      // that there are more frames.
      kNothing,
      // The turn is over. Frames may be left that no event of the poller will
      // announce, so the owner must call Receive again.
      kTurnOver,
      kWaits,  // The next frame must wait. The next Receive announces it again.
      kHandshake,  // `frame` is for the connection: a hello or a refusal.
      kRefused,    // The handler refuses a frame because of `status`.
      kBroken,     // The connection ends because of `status`. kInvalidArgument:
                   // the peer sent nonsense. kUnavailable: it is lost.
    };
    Kind kind = Kind::kNothing;
    absl::Status status;
    Frame frame;
  };

  virtual ~Channel() = default;

  // Begins the exchange of frames with `peer`. Until this call, all frames are
  // kHandshake. `counters` must outlive this.
  virtual void Open(PeerId peer, TrafficCounters& counters) = 0;

  // Writes frames from `frames` into the socket or the memory. Returns true if
  // no frame is left; false if there is no more room, or the turn is over.
  // Errors: kUnavailable, the connection is lost; kInvalidArgument, the peer
  // has written nonsense into the memory.
  virtual absl::StatusOr<bool> Write(FrameWriter& frames) = 0;

  // Returns the time since the last call in which frames waited because the
  // network was slower than this process (BlockedTime); nothing: frames do not
  // go through the network.
  virtual std::optional<absl::Duration> TakeBlockedTime() {
    return std::nullopt;
  }

  // Delivers frames that have arrived, for one turn at most.
  virtual Received Receive() = 0;

  // Returns true if anything of the peer has arrived since the last call.
  virtual bool TakeHeard() = 0;

  // Makes Receive deliver nothing from now on. Write still works.
  virtual void Stop() = 0;

  // Moves the landing of a frame that is arriving, if any, from a place of the
  // handler to a scratch: in a new epoch the place may have another use.
  virtual void LeavePlace() {}

  // Events of the socket that the poller must report. `reads`: true if this
  // side wants to read frames now.
  virtual uint32_t events(bool reads) const = 0;

  // The functions below are for MemoryChannel, whose frames the poller does not
  // see.

  // True if a frame of the other side is unread.
  virtual bool HasFrames() const { return false; }
  // Announces that this side may sleep. Returns true if the other side will
  // ring the bell when there is something to do; false if there already is.
  virtual bool MaySleep(bool /*reads*/) { return true; }
  // Tells the other side that this side looks for frames by itself again, so
  // the other side need not ring. Returns true if the last Write has left
  // frames.
  virtual bool Awake() { return false; }
  // True if Receive has something to do that no event of the poller announces.
  virtual bool HasWork() const { return false; }
};

}  // namespace nereus
