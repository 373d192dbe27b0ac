#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/protocol/frame.h"
#include "common/protocol/send_queue.h"
#include "common/transport/handshake.h"
#include "common/transport/memory/frame_ring.h"

namespace nereus {

// Frames on their way into a socket that does not wait. They are gathered from
// where they lie, several in one call, and stay referenced until the kernel has
// copied their bytes; checksums are computed just before that, so that the
// kernel finds the bytes in the cache.
//
// What it has handed to the kernel, and the frames of one call, are overtaken
// by nothing; behind them frames of lower rank go first.
//
// Not thread-safe. Dropping a payload may call its owner back, who may call
// Push.
class FrameWriter {
 public:
  // Called with each frame's header once all its bytes are in the kernel.
  using Written = std::function<void(const FrameHeader&)>;
  explicit FrameWriter(Written written) : written_(std::move(written)) {}

  // Goes before all frames. REQUIRES: nothing was written yet.
  void PushPreamble(const PreambleBytes& preamble);

  void Push(Frame frame);

  // Goes after all others; nothing goes after it.
  void PushLast(Frame frame);

  // Whether all is written.
  bool empty() const {
    return prefix_ == 0 && filled_ == 0 && queue_.empty() && !has_last_;
  }

  // Writes until all is written (true), the kernel takes no more, or the turn
  // is over (false). Errors: kUnavailable, the connection is lost.
  absl::StatusOr<bool> Write(int fd);
  // The same into memory. Errors: kInvalidArgument, what the other side has
  // written there. REQUIRES: nothing is under way into a socket.
  absl::StatusOr<bool> Write(FrameRingWriter& ring);

  // Drops what is not under way, so that only the rest of a frame that has
  // begun, and the last one, are still written.
  void DropWaiting();

  // The socket takes no more: drops everything, now and later.
  void Fail();

 private:
  // Gathered in one call.
  static constexpr size_t kFramesMax = 32;
  static constexpr int64_t kBytesMax = 512 * 1024;
  // In one turn.
  static constexpr int64_t kTurnBytes = 2 * 1024 * 1024;

  struct Slot {
    Frame frame;
    std::array<uint8_t, kFrameHeaderBytes> header;
    int64_t bytes() const { return kFrameHeaderBytes + frame.payload.bytes(); }
  };

  bool PopInto(Frame& frame);
  void Fill();
  void Take(int64_t bytes);

  const Written written_;
  PreambleBytes preamble_;
  size_t prefix_ = 0;  // What of it is not written.
  SendQueue<Frame> queue_;
  Frame last_;
  bool has_last_ = false;
  bool ended_ = false;  // Nothing more is taken.
  // Under way: [first_, filled_) of slots_, of the first one sent_ bytes.
  std::array<Slot, kFramesMax> slots_;
  size_t first_ = 0;
  size_t filled_ = 0;
  int64_t sent_ = 0;
};

}  // namespace nereus
