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
namespace {

// Copies bytes [begin, begin + bytes) of `slices` laid end to end; false if
// there are fewer.
bool Gather(const std::vector<grpc::Slice>& slices, size_t begin, size_t bytes,
            uint8_t* destination) {
  for (const grpc::Slice& slice : slices) {
    if (bytes == 0) break;
    if (begin >= slice.size()) {
      begin -= slice.size();
      continue;
    }
    const size_t piece = std::min(bytes, slice.size() - begin);
    std::memcpy(destination, slice.begin() + begin, piece);
    destination += piece;
    bytes -= piece;
    begin = 0;
  }
  return bytes == 0;
}

}  // namespace

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
    std::unique_ptr<OutgoingFrame> outgoing) {
  Frame& frame = outgoing->frame_;
  const auto payload_bytes = static_cast<size_t>(frame.payload.bytes());
  if (frame.header.payload_crc == 0 && payload_bytes > 0) {
    frame.header.payload_crc = Crc32c(frame.payload.data(), payload_bytes);
  }
  EncodeFrameHeader(frame.header, outgoing->encoded_);

  OutgoingFrame* const held = outgoing.release();
  const int slice_count = payload_bytes > 0 ? 2 : 1;
  held->holders_.store(slice_count + 1, std::memory_order_relaxed);
  grpc::Slice slices[2] = {
      grpc::Slice(held->encoded_, kFrameHeaderBytes, &Release, held),
      payload_bytes > 0 ? grpc::Slice(held->frame_.payload.data(),
                                      payload_bytes, &Release, held)
                        : grpc::Slice()};
  grpc::ByteBuffer message(slices, static_cast<size_t>(slice_count));
  Release(held);
  return message;
}

void OutgoingFrame::Release(void* frame) {
  auto* const held = static_cast<OutgoingFrame*>(frame);
  if (held->holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held;
}

absl::StatusOr<IncomingFrame> IncomingFrame::Read(
    const grpc::ByteBuffer& message) {
  IncomingFrame frame;
  if (!message.Dump(&frame.slices_).ok()) {
    return absl::InvalidArgumentError("a message that cannot be read");
  }
  size_t bytes = 0;
  for (const grpc::Slice& slice : frame.slices_) bytes += slice.size();
  uint8_t header[kFrameHeaderBytes];
  if (!Gather(frame.slices_, 0, kFrameHeaderBytes, header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes,
                     " bytes, a frame header alone has ", kFrameHeaderBytes));
  }
  NEREUS_ASSIGN_OR_RETURN(frame.header_, DecodeFrameHeader(absl::MakeConstSpan(
                                             header, kFrameHeaderBytes)));
  const size_t expected = kFrameHeaderBytes + frame.header_.payload_bytes;
  if (bytes != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(frame.header_), ": the message has ", bytes,
                     " bytes, its header says ", expected));
  }
  return frame;
}

void IncomingFrame::CopyPayload(uint8_t* destination) const {
  const bool complete =
      Gather(slices_, kFrameHeaderBytes, header_.payload_bytes, destination);
  NEREUS_CHECK(complete) << DescribeFrame(header_);
}

absl::StatusOr<Frame> ReadSmallFrame(const grpc::ByteBuffer& message,
                                     int64_t payload_bytes_max) {
  NEREUS_ASSIGN_OR_RETURN(const IncomingFrame incoming,
                          IncomingFrame::Read(message));
  Frame frame;
  frame.header = incoming.header();
  if (frame.header.payload_bytes > payload_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(frame.header), ": at most ",
                     payload_bytes_max, " bytes are expected here"));
  }
  frame.payload = Buffer::Allocate(frame.header.payload_bytes);
  incoming.CopyPayload(frame.payload.data());
  NEREUS_RETURN_IF_ERROR(CheckPayload(frame.header, frame.payload));
  return frame;
}

}  // namespace nereus
