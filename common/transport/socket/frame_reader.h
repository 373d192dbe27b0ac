#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/protocol/frame.h"
#include "common/transport/handshake.h"

namespace nereus {

// Frames as they come out of a socket that does not wait: their bytes go from
// the kernel to where the owner wants them, and the checksum is computed while
// they are in the cache. A little is read ahead, so that small frames do not
// cost a call each.
//
// Not thread-safe. Reads hostile input; reads nothing before a header, and
// decides nothing about it but that it is one.
class FrameReader {
 public:
  FrameReader();

  enum class Next {
    kNothing,  // Not yet.
    kHeader,   // A frame has announced itself: Land says where it goes.
    kFrame,    // All of it is there.
    kEnd,      // The peer has closed its side, between two frames.
  };
  // Reads on. Errors: kInvalidArgument, something that is not a frame;
  // kUnavailable, the connection is lost.
  absl::StatusOr<Next> Read(int fd);

  // What precedes the first frame; false: not yet. Errors: kUnavailable, the
  // connection is lost, or has ended.
  absl::StatusOr<bool> ReadPreamble(int fd, PreambleBytes& preamble);

  // Reads some of what comes and forgets it: kNothing, though there may be
  // more, or kEnd. Errors: kUnavailable.
  static absl::StatusOr<Next> Drain(int fd);

  // Of the frame that was announced last.
  const FrameHeader& header() const { return header_; }

  // Where the payload goes; null: nowhere. REQUIRES: kHeader.
  void Land(uint8_t* destination);

  // The rest of the payload, and what is there, go elsewhere. REQUIRES: Land
  // was called with a destination, and kFrame did not follow yet.
  void LandElsewhere(uint8_t* destination);

  // Of the payload as it came in. REQUIRES: kFrame, and it went somewhere.
  uint32_t payload_crc() const { return crc_; }

 private:
  // Read ahead.
  static constexpr size_t kAheadBytes = 16 * 1024;
  enum class State { kHeader, kAnnounced, kPayload };

  size_t ahead() const { return end_ - begin_; }
  // Of payload that was read ahead, or that is to be dropped.
  void TakeAhead();
  // What recvmsg says, once.
  absl::StatusOr<Next> Receive(int fd, uint8_t* place, size_t bytes,
                               size_t& placed);

  State state_ = State::kHeader;
  FrameHeader header_;
  uint8_t* destination_ = nullptr;
  size_t received_ = 0;  // Of the payload.
  uint32_t crc_ = 0;
  const std::unique_ptr<uint8_t[]> ahead_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace nereus
