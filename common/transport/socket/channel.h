#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/peer.h"
#include "common/transport/socket/frame_writer.h"
#include "common/transport/socket/traffic_table.h"

namespace nereus {

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
