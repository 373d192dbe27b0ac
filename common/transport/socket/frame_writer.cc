#include "common/transport/socket/frame_writer.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {

void FrameWriter::PushPreamble(const PreambleBytes& preamble) {
  preamble_ = preamble;
  prefix_ = preamble.size();
}

void FrameWriter::Push(Frame frame) {
  if (ended_) return;
  const uint32_t priority = frame.priority;
  queue_.Push(priority, std::move(frame));
}

void FrameWriter::PushLast(Frame frame) {
  if (ended_) return;
  last_ = std::move(frame);
  has_last_ = ended_ = true;
}

void FrameWriter::DropWaiting() {
  // Keeps the first frame if the kernel has a part of it.
  const size_t kept = sent_ > 0 ? first_ + 1 : first_;
  for (size_t i = kept; i < filled_; ++i) slots_[i].frame = Frame();
  filled_ = kept;
  if (first_ == filled_) first_ = filled_ = 0;
  // Owners of payloads may call Push during this call.
  queue_.TakeAll();
}

void FrameWriter::Fail() {
  ended_ = true;
  prefix_ = 0;
  has_last_ = false;
  first_ = filled_ = 0;
  sent_ = 0;
  // Owners of payloads may call Push meanwhile; Push drops frames by now.
  for (Slot& slot : slots_) slot.frame = Frame();
  queue_.TakeAll();
}

bool FrameWriter::PopInto(Frame& frame) {
  if (!queue_.empty()) {
    frame = queue_.Pop();
    return true;
  }
  if (!std::exchange(has_last_, false)) return false;
  frame = std::exchange(last_, Frame());
  return true;
}

absl::StatusOr<bool> FrameWriter::Write(FrameRingWriter& ring) {
  // The ring copies each frame, so one slot is enough.
  int64_t turn = 0;
  while (turn < kTurnBytes) {
    if (filled_ == 0) {
      if (!PopInto(slots_[0].frame)) return true;
      filled_ = 1;
    }
    const Slot& slot = slots_[first_];
    const bool pushed =
        NEREUS_TRY(ring.Push(slot.frame.header, slot.frame.payload));
    if (!pushed) return false;
    turn += slot.bytes();
    Take(slot.bytes());
  }
  return false;
}

void FrameWriter::Fill() {
  int64_t bytes = 0;
  while (filled_ < kFramesMax && bytes < kBytesMax) {
    Slot& slot = slots_[filled_];
    if (!PopInto(slot.frame)) return;
    // Computed as late as possible: the kernel reads the same bytes next.
    FrameHeader& header = slot.frame.header;
    const Buffer& payload = slot.frame.payload;
    if (header.payload_crc == 0) {
      header.payload_crc =
          Crc32c(payload.data(), static_cast<size_t>(payload.bytes()));
    }
    EncodeFrameHeader(header, slot.header.data());
    bytes += slot.bytes();
    ++filled_;
  }
}

absl::StatusOr<bool> FrameWriter::Write(int fd) {
  int64_t turn = 0;
  is_full_ = false;
  while (turn < kTurnBytes) {
    if (filled_ == 0) Fill();
    if (filled_ == 0 && prefix_ == 0) return true;
    std::array<iovec, 2 * kFramesMax + 1> pieces;
    size_t count = 0;
    if (prefix_ > 0) {
      pieces[count++] = {preamble_.data() + preamble_.size() - prefix_,
                         prefix_};
    }
    // Adds the part of a header or payload that the kernel does not have yet.
    int64_t skip = sent_;
    const auto add = [&](uint8_t* data, int64_t bytes) {
      const int64_t from = std::min(skip, bytes);
      skip -= from;
      if (from == bytes) return;
      pieces[count++] = {data + from, static_cast<size_t>(bytes - from)};
    };
    for (size_t i = first_; i < filled_; ++i) {
      add(slots_[i].header.data(), kFrameHeaderBytes);
      add(slots_[i].frame.payload.data(), slots_[i].frame.payload.bytes());
    }
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      is_full_ = errno == EAGAIN || errno == EWOULDBLOCK;
      if (is_full_) return false;
      return LostConnection(errno);
    }
    Take(sent);
    turn += sent;
  }
  return false;
}

void FrameWriter::Take(int64_t bytes) {
  const auto prefix = std::min(bytes, static_cast<int64_t>(prefix_));
  prefix_ -= static_cast<size_t>(prefix);
  sent_ += bytes - prefix;
  while (first_ < filled_ && sent_ >= slots_[first_].bytes()) {
    Slot& slot = slots_[first_];
    sent_ -= slot.bytes();
    // Releases the payload at the end of this loop body. Its owner may call
    // Push.
    const Frame done = std::exchange(slot.frame, Frame());
    ++first_;
    written_(done.header);
  }
  if (first_ == filled_) first_ = filled_ = 0;
}

}  // namespace nereus
