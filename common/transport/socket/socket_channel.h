#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/protocol/machine.h"
#include "common/tensor/buffer.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/channel.h"
#include "common/transport/socket/frame_reader.h"

namespace nereus {

// Sums up the time in which frames wait because the kernel takes no more bytes
// of a connection: the network is slower than this process. Time in which the
// other process takes no bytes does not count, because that is not the
// network's fault.
class BlockedTime {
 public:
  // Handles the end of a write. `is_full`: true if frames are left because the
  // kernel takes no more.
  void OnWritten(bool is_full, absl::Time now) {
    if (is_full && since_ == absl::InfiniteFuture()) since_ = now;
    if (!is_full) Stop(now);
  }

  // Returns the time since the last call, and begins anew. `peer_limited`: time
  // in which the kernel did not send because the other side took no bytes, over
  // the life of the connection.
  absl::Duration Take(absl::Duration peer_limited, absl::Time now) {
    if (since_ != absl::InfiniteFuture()) {
      Stop(now);
      since_ = now;
    }
    const absl::Duration limited =
        peer_limited - std::exchange(peer_limited_, peer_limited);
    return std::max(absl::ZeroDuration(),
                    std::exchange(sum_, absl::ZeroDuration()) - limited);
  }

 private:
  void Stop(absl::Time now) {
    if (since_ != absl::InfiniteFuture()) sum_ += now - since_;
    since_ = absl::InfiniteFuture();
  }

  absl::Duration sum_;                         // Time since the last Take.
  absl::Duration peer_limited_;                // Argument of the last Take.
  absl::Time since_ = absl::InfiniteFuture();  // Begin of the wait under way.
};

// Channel through a TCP socket. The kernel writes each payload where the
// handler wants it, and the checksum is verified before the handler gets the
// frame. Every connection begins with this channel, which also reads the frames
// of the handshake.
//
// A frame takes this way:
//
//   header ---Announce---> landing ---last byte---> checked ---> delivered
//     |  ^                                             |  ^
//     v  |  (again later)                              v  |  (again later)
//    waits                                            waits, complete
class SocketChannel final : public Channel {
 public:
  // `socket` and `delivery` must outlive this. `is_connected`: false while TCP
  // connects.
  SocketChannel(const Descriptor& socket, bool is_connected, Delivery& delivery)
      : socket_(socket), delivery_(delivery), blocked_(!is_connected) {}

  // Reads the preamble, which comes before the first frame. Returns false if it
  // has not all arrived. Errors: kUnavailable, the connection is lost, or has
  // ended.
  absl::StatusOr<bool> ReadPreamble(PreambleBytes& preamble) {
    return reader_.ReadPreamble(socket_.get(), preamble);
  }

  void Open(PeerId peer, TrafficCounters& counters) override;
  absl::StatusOr<bool> Write(FrameWriter& frames) override;
  std::optional<absl::Duration> TakeBlockedTime() override;
  Received Receive() override;
  bool TakeHeard() override { return reader_.TakeHeard(); }
  void Stop() override;
  void LeavePlace() override;
  uint32_t events(bool reads) const override;

 private:
  // Handle the header of a frame (Announce), its last byte (OnComplete), and a
  // complete frame (Deliver). Return what Receive must return; nothing if
  // Receive reads on.
  std::optional<Received> Announce();
  std::optional<Received> OnComplete();
  std::optional<Received> Deliver();

  // True if the frame that is arriving is for the connection, not for the
  // handler.
  bool is_handshake() const;
  // Returns a view of the payload in the memory where it has landed.
  Buffer Payload() const;
  // Moves the received part of the payload from the handler's place to a
  // scratch.
  void MoveToScratch();

  const Descriptor& socket_;             // Owned by the connection.
  Delivery& delivery_;                   // Calls the handler.
  std::optional<PeerId> peer_;           // Peer; nullopt before Open.
  TrafficCounters* counters_ = nullptr;  // Null before Open.
  FrameReader reader_;                   // Reads frames.

  // The next five are about the frame that is arriving.
  Landing landing_;           // Memory for its payload.
  Buffer scratch_;            // Memory for its payload, if that is a scratch.
  int64_t announced_at_ = 0;  // Delivery::version when it was announced.
  bool landing_now_ = false;  // True while its payload is being received.
  bool complete_ = false;     // True if the frame has arrived and waits.

  bool blocked_;  // True if the socket takes no more, or is not connected.
  BlockedTime blocked_time_;  // Time of blocked_ after it was connected.
  bool stopped_ = false;      // Stop was called.
};

}  // namespace nereus
