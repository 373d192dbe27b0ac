#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/protocol/hello.h"
#include "common/transport/memory/frame_ring.h"
#include "common/transport/memory/shared_memory.h"
#include "common/transport/socket/channel.h"

namespace nereus {

// Channel between two processes on one host. Frames go through memory that both
// processes have mapped, with one ring for each direction. The socket is the
// bell: a byte in it wakes a side that sleeps. The connection ends when the
// socket ends.
//
// The dialling side creates the memory and offers it in its hello. The other
// side opens the memory, and accepts the offer in its own hello. If either side
// cannot map the memory, or its options forbid that, the connection keeps its
// SocketChannel.
class MemoryChannel final : public Channel {
 public:
  // Bytes of memory that one connection needs.
  static constexpr size_t kBytes = 2 * FrameRing::kBytes;

  // Creates memory to offer. `socket` and `delivery` must outlive the channel.
  // Errors: kUnavailable, the system gives no shared memory.
  static absl::StatusOr<std::unique_ptr<MemoryChannel>> Create(
      const Descriptor& socket, Delivery& delivery);

  // Opens memory that the peer has created and offers. Errors: as
  // SharedMemory::Open.
  static absl::StatusOr<std::unique_ptr<MemoryChannel>> Accept(
      const SharedMemoryOffer& offer, const Descriptor& socket,
      Delivery& delivery);

  // Offer for the peer, by which Accept finds this channel's memory.
  const SharedMemoryOffer& offer() const { return memory_.offer(); }

  void Open(PeerId peer, TrafficCounters& counters) override;
  absl::StatusOr<bool> Write(FrameWriter& frames) override;
  Received Receive() override;
  bool TakeHeard() override { return std::exchange(heard_, false); }
  void Stop() override { stopped_ = true; }
  uint32_t events(bool reads) const override;
  bool HasFrames() const override { return !reader_.empty(); }
  bool MaySleep(bool reads) override;
  bool Awake() override;
  bool HasWork() const override { return HasFrames() || ended_.has_value(); }

 private:
  MemoryChannel(SharedMemory memory, bool is_creator, const Descriptor& socket,
                Delivery& delivery);

  // Empties the bell, and notes if the socket has ended.
  void ReadBell();
  // Rings the peer's bell.
  void Ring();
  // Handles the first frame of the ring. Returns what Receive must return;
  // nothing if Receive goes on with the next frame.
  std::optional<Received> Take(Frame frame);

  const Descriptor& socket_;             // The bell; owned by the connection.
  Delivery& delivery_;                   // Calls the handler.
  PeerId peer_;                          // Set by Open.
  TrafficCounters* counters_ = nullptr;  // Null before Open.
  SharedMemory memory_;                  // Holds both rings.
  FrameRingWriter writer_;               // Frames to the peer.
  FrameRingReader reader_;               // Frames from the peer.
  // True if the last Write has left frames: the ring was full, or the turn was
  // over.
  bool blocked_ = false;
  bool stopped_ = false;               // Stop was called.
  bool heard_ = false;                 // See TakeHeard().
  std::optional<absl::Status> ended_;  // Reason why the socket has ended.
};

}  // namespace nereus
