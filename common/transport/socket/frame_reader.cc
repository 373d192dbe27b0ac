#include "common/transport/socket/frame_reader.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/types/span.h"
#include "common/base/crc32c.h"
#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Largest number of reads in one Drain. Without a limit, a fast peer could keep
// Drain busy for ever.
constexpr int kDrainsMax = 64;

}  // namespace

FrameReader::FrameReader() : ahead_(std::make_unique<uint8_t[]>(kAheadBytes)) {}

absl::StatusOr<FrameReader::Next> FrameReader::Receive(int fd, uint8_t* place,
                                                       size_t bytes,
                                                       size_t& placed) {
  // Bytes beyond the payload are read ahead.
  iovec pieces[2] = {{place, bytes}, {ahead_.get() + end_, kAheadBytes - end_}};
  msghdr message = {};
  message.msg_iov = bytes > 0 ? pieces : pieces + 1;
  message.msg_iovlen = bytes > 0 ? 2 : 1;
  ssize_t got = 0;
  do {
    got = recvmsg(fd, &message, 0);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return Next::kEnd;
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Next::kNothing;
    return LostConnection(errno);
  }
  heard_ = true;
  placed = std::min(static_cast<size_t>(got), bytes);
  end_ += static_cast<size_t>(got) - placed;
  return Next::kFrame;
}

absl::StatusOr<bool> FrameReader::ReadPreamble(int fd,
                                               PreambleBytes& preamble) {
  while (ahead() < preamble.size()) {
    size_t placed = 0;
    const Next next = NEREUS_TRY(Receive(fd, nullptr, 0, placed));
    if (next == Next::kNothing) return false;
    if (next == Next::kEnd) {
      return UnavailableError("the peer closed the connection");
    }
  }
  std::memcpy(preamble.data(), ahead_.get() + begin_, preamble.size());
  begin_ += preamble.size();
  return true;
}

absl::StatusOr<FrameReader::Next> FrameReader::Read(int fd) {
  while (true) {
    // The owner has not called Land: it made the frame wait. Reports it again.
    if (state_ == State::kAnnounced) return Next::kHeader;
    size_t wanted = 0;
    if (state_ == State::kPayload) {
      TakeAhead();
      wanted = header_.payload_bytes - received_;
      if (wanted == 0) {
        state_ = State::kHeader;
        return Next::kFrame;
      }
    } else if (ahead() >= kFrameHeaderBytes) {
      header_ = NEREUS_TRY(DecodeFrameHeader(
          absl::MakeConstSpan(ahead_.get() + begin_, kFrameHeaderBytes)));
      begin_ += kFrameHeaderBytes;
      state_ = State::kAnnounced;
      continue;
    }
    // Makes room for bytes that are read ahead. Fewer than 64 bytes move: they
    // are no whole header.
    if (begin_ > 0) {
      std::memmove(ahead_.get(), ahead_.get() + begin_, ahead());
      end_ -= std::exchange(begin_, 0);
    }
    // Reads a payload that is dropped into the memory for reading ahead, part
    // by part; TakeAhead skips it.
    const bool dropped = wanted > 0 && destination_ == nullptr;
    uint8_t* const place =
        destination_ == nullptr ? nullptr : destination_ + received_;
    size_t placed = 0;
    const Next next =
        NEREUS_TRY(Receive(fd, place, dropped ? 0 : wanted, placed));
    if (next == Next::kNothing) return next;
    if (next == Next::kEnd) {
      if (state_ == State::kHeader && ahead() == 0) return next;
      return UnavailableError(
          "the connection was lost: the peer closed it within a frame");
    }
    // Computes the checksum now, while the bytes are in the cache.
    if (placed > 0) {
      crc_ = ExtendCrc32c(crc_, place, placed);
      received_ += placed;
    }
  }
}

absl::StatusOr<FrameReader::Next> FrameReader::Drain(int fd) {
  uint8_t bytes[16 * 1024];
  for (int i = 0; i < kDrainsMax; ++i) {
    const ssize_t got = recv(fd, bytes, sizeof(bytes), 0);
    if (got == 0) return Next::kEnd;
    if (got > 0 || errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Next::kNothing;
    return LostConnection(errno);
  }
  return Next::kNothing;
}

void FrameReader::Land(uint8_t* destination) {
  destination_ = destination;
  received_ = 0;
  crc_ = 0;
  state_ = State::kPayload;
}

void FrameReader::LandElsewhere(uint8_t* destination) {
  std::memcpy(destination, destination_, received_);
  destination_ = destination;
}

void FrameReader::TakeAhead() {
  const size_t bytes =
      std::min<size_t>(ahead(), header_.payload_bytes - received_);
  if (bytes == 0) return;
  const uint8_t* const from = ahead_.get() + begin_;
  if (destination_ != nullptr) {
    std::memcpy(destination_ + received_, from, bytes);
    crc_ = ExtendCrc32c(crc_, from, bytes);
  }
  received_ += bytes;
  begin_ += bytes;
}

}  // namespace nereus
