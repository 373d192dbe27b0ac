#ifndef NEREUS_COMMON_TRANSPORT_GRPC_FRAMES_H_
#define NEREUS_COMMON_TRANSPORT_GRPC_FRAMES_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/frame.h"

namespace nereus {

// Frames as gRPC messages: 64 bytes of header, then the payload, then the next
// frame, if it is fused. Internal to the gRPC transport.

// How many of something are in use; to wait until none is. Thread-safe. Shared
// by those things and by the transport that waits: gRPC may hold on to either
// for longer than the transport lives.
class UseCount {
 public:
  void Increment();
  void Decrement();

  // True if none was left before `deadline`.
  bool WaitForZero(absl::Time deadline);

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int64_t count_ = 0;  // Guarded by mu_.
};

// A frame on its way out, from Send until its bytes were taken by the kernel.
class OutgoingFrame {
 public:
  // `unsent` counts this one until it is destroyed.
  OutgoingFrame(Frame frame, std::shared_ptr<UseCount> unsent);
  ~OutgoingFrame();
  OutgoingFrame(const OutgoingFrame&) = delete;
  OutgoingFrame& operator=(const OutgoingFrame&) = delete;

  const FrameHeader& header() const { return frame_.header; }
  uint32_t rank() const { return frame_.rank; }
  bool fused() const { return frame_.fused; }
  int64_t bytes() const { return kFrameHeaderBytes + frame_.payload.bytes(); }

  // A message that refers to the frames' own memory; computes the checksum of
  // a payload if there is none yet. A frame lives until gRPC, which may keep
  // the bytes after the write is said to be done, has let go of the last of
  // them.
  static grpc::ByteBuffer ToMessage(
      std::vector<std::unique_ptr<OutgoingFrame>> frames);

 private:
  static void AddSlices(std::unique_ptr<OutgoingFrame> frame,
                        std::vector<grpc::Slice>& slices);
  static void Release(void* frame);

  Frame frame_;
  const std::shared_ptr<UseCount> unsent_;
  std::atomic<int> holders_{0};  // Slices, and AddSlices while it runs.
  uint8_t encoded_[kFrameHeaderBytes];
};

// A message that has come in, from anybody: one frame or more, end to end.
class IncomingMessage {
 public:
  // Errors: kInvalidArgument, something that is not a frame header, or a length
  // that is not that of the frames.
  static absl::StatusOr<IncomingMessage> Read(const grpc::ByteBuffer& message);

  size_t frames() const { return frames_.size(); }  // >= 1
  const FrameHeader& header(size_t frame) const {
    return frames_[frame].header;
  }

  // Writes the payload to `destination`, header(frame).payload_bytes long.
  void CopyPayload(size_t frame, uint8_t* destination) const;

 private:
  // A place in slices_.
  struct Cursor {
    size_t slice = 0;
    size_t offset = 0;
  };
  struct Part {
    FrameHeader header;
    Cursor payload;
  };

  // Copies the next bytes, or skips them if `destination` is null; false if
  // there are fewer.
  bool Take(Cursor& cursor, size_t bytes, uint8_t* destination) const;
  bool AtEnd(Cursor cursor) const;

  std::vector<grpc::Slice> slices_;
  std::vector<Part> frames_;
};

// Copies the payload to memory of the frame's own and checks it: for the few
// small frames of a handshake. Errors: as Read; kInvalidArgument, more than one
// frame, a payload of more than `payload_bytes_max`, or a wrong checksum.
absl::StatusOr<Frame> ReadSmallFrame(const grpc::ByteBuffer& message,
                                     int64_t payload_bytes_max);

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_GRPC_FRAMES_H_
