#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/transport/handshake.h"

namespace nereus {

// Reads frames from a socket that does not block. The kernel writes payloads
// where the owner of this object wants them, and the checksum is computed while
// the bytes are in the cache. Up to 16 KiB beyond the payload are read ahead,
// so that small frames do not cost a system call each.
//
//   Read -> kHeader, Land(place), Read -> kFrame, Read -> kHeader ...
//
// Not thread-safe. The input may be hostile. FrameReader checks only that
// headers are valid; the owner compares the checksum of the payload.
class FrameReader {
 public:
  FrameReader();

  enum class Next {
    kNothing,  // The rest has not come yet.
    kHeader,   // A frame was announced: Land must say where it goes.
    kFrame,    // The whole frame has arrived.
    kEnd,      // The peer has closed its side, between two frames.
  };
  // Reads on, and returns the next event. Errors: kInvalidArgument, the bytes
  // are no header of a frame; kUnavailable, the connection is lost.
  absl::StatusOr<Next> Read(int fd);

  // Reads the preamble, which comes before the first frame. Returns false if it
  // has not all arrived. Errors: kUnavailable, the connection is lost, or has
  // ended.
  absl::StatusOr<bool> ReadPreamble(int fd, PreambleBytes& preamble);

  // Reads and drops some of the bytes that have arrived. Returns kEnd at the
  // end of the connection, else kNothing; more bytes may be left. Errors:
  // kUnavailable, the connection is lost.
  static absl::StatusOr<Next> Drain(int fd);

  // Returns true if bytes have arrived since the last call.
  bool TakeHeard() { return std::exchange(heard_, false); }

  // Header of the frame for which Read last returned kHeader.
  const FrameHeader& header() const { return header_; }

  // Sets the memory for the payload; null: drops the payload. REQUIRES: the
  // last Read returned kHeader.
  void Land(uint8_t* destination);

  // Moves the received part of the payload to other memory, which also receives
  // the rest. REQUIRES: Land was called with a destination for the last frame.
  void LandElsewhere(uint8_t* destination);

  // Checksum of the payload as it arrived. REQUIRES: the last Read returned
  // kFrame, and the payload was not dropped.
  uint32_t payload_crc() const { return crc_; }

 private:
  // Length of the memory for bytes that are read ahead.
  static constexpr size_t kAheadBytes = 16 * 1024;
  // kHeader: this reads a header next. kAnnounced: the owner must call Land
  // next. kPayload: this reads the payload next.
  enum class State { kHeader, kAnnounced, kPayload };

  // Number of bytes that are read ahead.
  size_t ahead() const { return end_ - begin_; }
  // Copies payload that was read ahead to its destination.
  void TakeAhead();
  // Calls recvmsg once. The first `bytes` bytes go to `place`; all further
  // bytes are read ahead. Sets `placed` to the number of bytes at `place`.
  // Returns kFrame if any bytes came, else kNothing or kEnd.
  absl::StatusOr<Next> Receive(int fd, uint8_t* place, size_t bytes,
                               size_t& placed);

  State state_ = State::kHeader;
  FrameHeader header_;
  uint8_t* destination_ = nullptr;  // Null: the payload is dropped.
  size_t received_ = 0;             // Received bytes of the payload.
  uint32_t crc_ = 0;                // Checksum of the received bytes.
  bool heard_ = false;              // See TakeHeard().
  // Bytes read ahead: [begin_, end_) of ahead_.
  const std::unique_ptr<uint8_t[]> ahead_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace nereus
