#include "common/transport/socket/channel.h"

#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {

void Delivery::Begin(FrameHandler& handler) {
  // Code outside Poll may have changed the handler's state since the last Poll.
  handler_ = &handler;
  delivered_ = false;
  ++version_;
}

absl::StatusOr<Landing> Delivery::Announce(PeerId from,
                                           const FrameHeader& header) {
  // In Shutdown frames still come, until the peer has closed its side.
  if (handler_ == nullptr) return Landing::Discard();
  if (header.kind == FrameKind::kHello) {
    return InvalidArgumentError(DescribeFrame(header),
                                ": a second hello on one connection");
  }
  absl::StatusOr<Landing> landing = handler_->OnHeader(from, header);
  if (landing.ok() && landing->kind == Landing::Kind::kPlace) {
    NEREUS_CHECK(landing->place.bytes() == header.payload_bytes)
        << DescribeFrame(header) << ": the landing has "
        << landing->place.bytes() << " bytes";
  }
  return landing;
}

void Delivery::Deliver(PeerId from, const Frame& frame) {
  NoteCall();
  handler_->OnFrame(from, frame);
}

void Delivery::Connected(PeerId peer) {
  if (handler_ == nullptr) return;
  NoteCall();
  handler_->OnConnected(peer);
}

void Delivery::Disconnected(PeerId peer, const absl::Status& reason) {
  if (handler_ == nullptr) return;
  NoteCall();
  handler_->OnDisconnected(peer, reason);
}

void Delivery::NoteCall() {
  ++version_;
  delivered_ = true;
}

Buffer Delivery::TakeScratch() {
  if (scratches_.empty()) return Buffer::Allocate(kFramePayloadBytesMax);
  Buffer scratch = std::move(scratches_.back());
  scratches_.pop_back();
  return scratch;
}

void Delivery::GiveBack(Buffer scratch) {
  // The small buffers of a handshake are not worth keeping.
  if (scratch.bytes() == kFramePayloadBytesMax) {
    scratches_.push_back(std::move(scratch));
  }
}

}  // namespace nereus
