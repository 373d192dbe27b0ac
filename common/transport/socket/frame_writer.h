#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/transport/handshake.h"
#include "common/transport/memory/frame_ring.h"

namespace nereus {

// Queue of frames that wait to be sent to one peer. The frame with the lowest
// Frame::priority goes first; frames of equal priority keep their order. So an
// urgent small layer waits for one frame of a large layer at most, and not for
// the whole layer.
//
// `T` is the type that holds a frame. Not thread-safe. The queue has no limit:
// machines put few frames into it, because each round has a fixed number of
// frames and a worker has few rounds open.
template <typename T>
class SendQueue {
 public:
  // Adds a frame, behind all frames of the same priority.
  void Push(uint32_t priority, T frame) {
    entries_.push_back({priority, next_++, std::move(frame)});
    std::push_heap(entries_.begin(), entries_.end(), GoesAfter);
  }

  // Removes and returns the next frame. REQUIRES: !empty().
  T Pop() {
    std::pop_heap(entries_.begin(), entries_.end(), GoesAfter);
    T frame = std::move(entries_.back().frame);
    entries_.pop_back();
    return frame;
  }

  // Returns the next frame. REQUIRES: !empty().
  const T& front() const { return entries_.front().frame; }

  // True if no frame waits.
  bool empty() const { return entries_.empty(); }

  // Removes all frames and returns them in the order of sending.
  std::deque<T> TakeAll() {
    std::deque<T> all;
    while (!empty()) all.push_back(Pop());
    return all;
  }

 private:
  // A frame that waits.
  struct Entry {
    uint32_t priority = 0;  // Lower values go first.
    // Number of earlier calls of Push. Orders entries of equal priority.
    uint64_t number = 0;
    T frame;  // The frame.
  };

  // True if `entry` must be sent after `other`. The heap functions use this as
  // "less than" and put the greatest entry first: the one to send next.
  static bool GoesAfter(const Entry& entry, const Entry& other) {
    return std::tie(entry.priority, entry.number) >
           std::tie(other.priority, other.number);
  }

  // Binary heap of the frames that wait. The vector keeps its memory, so in the
  // long run Push does not allocate.
  std::vector<Entry> entries_;
  uint64_t next_ = 0;  // Number for the next Push.
};

// Queues the frames of one connection and writes them into its socket, which
// does not block, or into a ring in memory.
//
// Payloads are not copied here. For a socket, one system call gathers several
// payloads from where they lie. Their checksums are computed just before this
// call, so that the kernel finds the bytes in the cache. Each payload stays
// referenced until the kernel, or the ring, has copied its bytes.
//
// Frames wait in the order of SendQueue: lower priority values go first. No
// frame overtakes a frame that the kernel has or that is gathered already.
//
// Not thread-safe. When this drops or releases a payload, the owner of the
// payload is called, and may call Push.
class FrameWriter {
 public:
  // Called with the header of each frame that has been written completely.
  using Written = std::function<void(const FrameHeader&)>;
  explicit FrameWriter(Written written) : written_(std::move(written)) {}

  // Sends `preamble` before all frames. REQUIRES: nothing was written yet.
  void PushPreamble(const PreambleBytes& preamble);

  void Push(Frame frame);

  // Sends `frame` after all queued frames. Drops all frames that Push gets
  // later.
  void PushLast(Frame frame);

  // True if the preamble and all frames are written.
  bool empty() const {
    return prefix_ == 0 && filled_ == 0 && queue_.empty() && !has_last_;
  }

  // Writes into the socket `fd`. Returns true if everything is written; false
  // if the kernel takes no more bytes now, or the turn is over (Channel).
  // Errors: kUnavailable, the connection is lost.
  absl::StatusOr<bool> Write(int fd);
  // True if the last Write into a socket has ended because the kernel took no
  // more bytes.
  bool is_full() const { return is_full_; }
  // Writes into a ring. Returns true if everything is written; false if the
  // ring is full, or the turn is over. Errors: kInvalidArgument, the reader has
  // written nonsense into the ring. REQUIRES: no frame is partly in a socket.
  absl::StatusOr<bool> Write(FrameRingWriter& ring);

  // Drops the frames of which no byte is written, except the frame of PushLast.
  void DropWaiting();

  // Drops all frames, queued now or pushed later: the socket takes no more.
  void Fail();

 private:
  // Limits of what one system call gathers. An urgent frame waits for all of
  // it, so it is no more than the kernel keeps unsent (kUnsentBytesMax in
  // common/base/socket.cc).
  static constexpr size_t kFramesMax = 32;
  static constexpr int64_t kBytesMax = 128 * 1024;
  // Number of written bytes after which a call of Write ends: other connections
  // have to write, too.
  static constexpr int64_t kTurnBytes = 2 * 1024 * 1024;

  // A frame that is being written.
  struct Slot {
    Frame frame;
    std::array<uint8_t, kFrameHeaderBytes> header;  // Encoded.
    int64_t bytes() const { return kFrameHeaderBytes + frame.payload.bytes(); }
  };

  // Takes the next frame out of the queue, or the last frame. Returns false if
  // there is none.
  bool PopInto(Frame& frame);
  // Gathers frames for the next system call, and computes their checksums.
  void Fill();
  // Counts `bytes` as written, and releases the frames that are complete.
  void Take(int64_t bytes);

  const Written written_;
  PreambleBytes preamble_;
  size_t prefix_ = 0;  // Bytes of the preamble that are not written.
  SendQueue<Frame> queue_;
  Frame last_;             // Argument of PushLast.
  bool has_last_ = false;  // True if last_ is still to be put into a slot.
  bool ended_ = false;     // True if Push drops frames.
  bool is_full_ = false;   // See is_full().
  // Frames that are being written: [first_, filled_) of slots_. The kernel has
  // sent_ bytes of the frame in slot first_.
  std::array<Slot, kFramesMax> slots_;
  size_t first_ = 0;
  size_t filled_ = 0;
  int64_t sent_ = 0;
};

}  // namespace nereus
