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

// Path of the frames of one connection: all bytes through its socket
// (SocketChannel), or through memory that both processes share, with the socket
// as the bell (MemoryChannel). The channel passes arriving frames to the
// Delivery. Receive returns events that concern the whole connection, and the
// channel's owner acts on them.
//
// Not thread-safe. The handler may stop the channel while Receive runs, but
// must not destroy it.
class Channel {
 public:
  // Reason why a call of Receive has ended.
  struct Received {
    enum class Kind {
      // All received frames are delivered, or the channel was stopped.
      kNothing,
      // More frames have arrived, perhaps without an event of the poller: call
      // again.
      kTurnOver,
      kWaits,      // The next frame must wait; Receive announces it again.
      kHandshake,  // `frame`: a frame for the connection itself.
      kRefused,    // The handler refuses a frame because of `status`.
      kBroken,     // kInvalidArgument: the peer sent nonsense. kUnavailable:
                   // the connection is lost.
    };
    Kind kind = Kind::kNothing;
    absl::Status status;
    Frame frame;
  };

  virtual ~Channel() = default;

  // Frames go to and come from `peer` from now on; until then all frames are
  // kHandshake. `counters` must outlive this.
  virtual void Open(PeerId peer, TrafficCounters& counters) = 0;

  // Moves frames out of `frames` until none is left (true), or the channel has
  // no room or the turn is over (false). Errors: kUnavailable, the socket takes
  // no more; kInvalidArgument, the peer wrote nonsense into the memory.
  virtual absl::StatusOr<bool> Write(FrameWriter& frames) = 0;

  // Delivers frames that have arrived, for one turn at most.
  virtual Received Receive() = 0;

  // Delivers nothing more, and gives memory back. Write still works.
  virtual void Stop() = 0;

  // The frame that is arriving, if any, no longer goes to a place of the
  // handler's: that place may belong to a new epoch.
  virtual void LeavePlace() {}

  // Events of the socket that the poller must report, if this side wants to
  // read frames now or not.
  virtual uint32_t events(bool reads) const = 0;

  // The rest is for channels with frames that no poller sees.

  // True if the other side has written a frame.
  virtual bool HasFrames() const { return false; }
  // True if the other side will ring the bell when there is something to do.
  virtual bool MaySleep(bool /*reads*/) { return true; }
  // Tells the other side that this side looks for frames by itself again, so
  // the other side need not ring. Returns true if frames wait for room.
  virtual bool Awake() { return false; }
  // True if Receive has something to do that no event announces.
  virtual bool HasWork() const { return false; }
};

}  // namespace nereus
