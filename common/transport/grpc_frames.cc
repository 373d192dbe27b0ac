#include "common/transport/grpc_frames.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace nereus {
void UseCount::Increment() {
  std::lock_guard<std::mutex> lock(mu_);
  ++count_;
}

void UseCount::Decrement() {
  std::lock_guard<std::mutex> lock(mu_);
  if (--count_ == 0) changed_.notify_all();
}

bool UseCount::WaitForZero(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mu_);
  return changed_.wait_until(lock, absl::ToChronoTime(deadline),
                             [this] { return count_ == 0; });
}

OutgoingFrame::OutgoingFrame(Frame frame, std::shared_ptr<UseCount> unsent)
    : frame_(std::move(frame)), unsent_(std::move(unsent)) {
  unsent_->Increment();
}

OutgoingFrame::~OutgoingFrame() {
  // The caller's buffer is free before the count says so.
  frame_.payload = Buffer();
  unsent_->Decrement();
}

grpc::ByteBuffer OutgoingFrame::ToMessage(
    std::vector<std::unique_ptr<OutgoingFrame>> frames) {
  std::vector<grpc::Slice> slices;
  for (auto& frame : frames) AddSlices(std::move(frame), slices);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

void OutgoingFrame::AddSlices(std::unique_ptr<OutgoingFrame> outgoing,
                              std::vector<grpc::Slice>& slices) {
  Frame& frame = outgoing->frame_;
  const auto payload_bytes = static_cast<size_t>(frame.payload.bytes());
  if (frame.header.payload_crc == 0 && payload_bytes > 0) {
    frame.header.payload_crc = Crc32c(frame.payload.data(), payload_bytes);
  }
  EncodeFrameHeader(frame.header, outgoing->encoded_);

  OutgoingFrame* const held = outgoing.release();
  held->holders_.store(payload_bytes > 0 ? 3 : 2, std::memory_order_relaxed);
  slices.emplace_back(held->encoded_, kFrameHeaderBytes, &Release, held);
  if (payload_bytes > 0) {
    slices.emplace_back(held->frame_.payload.data(), payload_bytes, &Release,
                        held);
  }
  Release(held);
}

void OutgoingFrame::Release(void* frame) {
  auto* const held = static_cast<OutgoingFrame*>(frame);
  if (held->holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held;
}

absl::StatusOr<IncomingMessage> IncomingMessage::Read(
    const grpc::ByteBuffer& buffer) {
  IncomingMessage message;
  if (!buffer.Dump(&message.slices_).ok()) {
    return absl::InvalidArgumentError("a message that cannot be read");
  }
  Cursor cursor;
  do {
    uint8_t bytes[kFrameHeaderBytes];
    if (!message.Take(cursor, kFrameHeaderBytes, bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a message of ", buffer.Length(), " bytes ends in a frame header, ",
          kFrameHeaderBytes, " bytes, after ", message.frames(), " frames"));
    }
    Part part;
    NEREUS_ASSIGN_OR_RETURN(part.header, DecodeFrameHeader(absl::MakeConstSpan(
                                             bytes, kFrameHeaderBytes)));
    part.payload = cursor;
    if (!message.Take(cursor, part.header.payload_bytes, nullptr)) {
      return absl::InvalidArgumentError(
          absl::StrCat(DescribeFrame(part.header), ": the message has ",
                       buffer.Length(), " bytes, and ends before the frame"));
    }
    message.frames_.push_back(part);
  } while (!message.AtEnd(cursor));
  return message;
}

bool IncomingMessage::Take(Cursor& cursor, size_t bytes,
                           uint8_t* destination) const {
  while (bytes > 0 && cursor.slice < slices_.size()) {
    const grpc::Slice& slice = slices_[cursor.slice];
    const size_t piece = std::min(bytes, slice.size() - cursor.offset);
    if (destination != nullptr && piece > 0) {
      std::memcpy(destination, slice.begin() + cursor.offset, piece);
      destination += piece;
    }
    bytes -= piece;
    cursor.offset += piece;
    if (cursor.offset == slice.size()) cursor = {cursor.slice + 1, 0};
  }
  return bytes == 0;
}

bool IncomingMessage::AtEnd(Cursor cursor) const {
  while (cursor.slice < slices_.size() &&
         cursor.offset == slices_[cursor.slice].size()) {
    cursor = {cursor.slice + 1, 0};
  }
  return cursor.slice == slices_.size();
}

void IncomingMessage::CopyPayload(size_t frame, uint8_t* destination) const {
  const Part& part = frames_[frame];
  Cursor cursor = part.payload;
  const bool complete = Take(cursor, part.header.payload_bytes, destination);
  NEREUS_CHECK(complete) << DescribeFrame(part.header);
}

absl::StatusOr<Frame> ReadSmallFrame(const grpc::ByteBuffer& message,
                                     int64_t payload_bytes_max) {
  NEREUS_ASSIGN_OR_RETURN(const IncomingMessage incoming,
                          IncomingMessage::Read(message));
  Frame frame;
  frame.header = incoming.header(0);
  if (incoming.frames() > 1 || frame.header.payload_bytes > payload_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(frame.header), ": one frame of at most ",
                     payload_bytes_max, " bytes is expected here"));
  }
  frame.payload = Buffer::Allocate(frame.header.payload_bytes);
  incoming.CopyPayload(0, frame.payload.data());
  NEREUS_RETURN_IF_ERROR(CheckPayload(frame.header, frame.payload));
  return frame;
}

}  // namespace nereus
