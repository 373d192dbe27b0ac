#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/frame.h"
#include "common/protocol/peer.h"
#include "common/transport/socket/frame_writer.h"
#include "common/transport/socket/traffic_table.h"

namespace nereus {

// How the frames of one connection travel: all bytes through its socket
// (SocketChannel), or through memory that both processes share, with the socket
// as the bell (MemoryChannel). The channel hands arriving frames to the
// Delivery; what concerns the connection as a whole it returns from Receive,
// and its owner acts on it.
//
// Not thread-safe. The handler may stop the channel while Receive runs, but
// must not destroy it.
class Channel {
 public:
  // Reason why a call of Receive has ended.
  struct Received {
    enum class Kind {
      kNothing,    // All that came is delivered, or the channel was stopped.
      kTurnOver,   // There is more, and the poller may not know: call again.
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

  // Delivers frames that have come, for one turn at most.
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
  // This side looks by itself again: the other one need not ring. Returns true
  // if frames wait for room.
  virtual bool Awake() { return false; }
  // True if Receive has something to do that no event announces.
  virtual bool HasWork() const { return false; }
};

}  // namespace nereus
