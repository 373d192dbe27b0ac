#include "common/transport/socket/socket_channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Bytes that one connection may deliver before the others have their turn.
constexpr int64_t kTurnBytes = 2 * 1024 * 1024;

// Largest payload of a frame of the handshake.
constexpr int64_t kSmallBytesMax = std::max(kHelloBytesMax, kRefusalBytesMax);

Channel::Received Broken(absl::Status status) {
  return {Channel::Received::Kind::kBroken, std::move(status), Frame()};
}

Channel::Received Refused(absl::Status status) {
  return {Channel::Received::Kind::kRefused, std::move(status), Frame()};
}

}  // namespace

void SocketChannel::Open(PeerId peer, TrafficCounters& counters) {
  peer_ = peer;
  counters_ = &counters;
}

absl::StatusOr<bool> SocketChannel::Write(FrameWriter& frames) {
  absl::StatusOr<bool> all = frames.Write(socket_.get());
  blocked_ = all.ok() && !*all;
  blocked_time_.OnWritten(frames.is_full(), SteadyNow());
  return all;
}

std::optional<absl::Duration> SocketChannel::TakeBlockedTime() {
  return blocked_time_.Take(PeerLimitedTime(socket_), SteadyNow());
}

uint32_t SocketChannel::events(bool reads) const {
  return (reads ? uint32_t{EPOLLIN} : 0U) |
         (blocked_ ? uint32_t{EPOLLOUT} : 0U);
}

void SocketChannel::Stop() {
  stopped_ = true;
  landing_now_ = complete_ = false;
  // Forgets the handler's memory, which may get another use: no payload may be
  // written there from now on.
  landing_ = Landing();
  delivery_.GiveBack(std::exchange(scratch_, Buffer()));
}

void SocketChannel::LeavePlace() {
  if (landing_now_ && landing_.kind == Landing::Kind::kPlace) MoveToScratch();
}

void SocketChannel::MoveToScratch() {
  scratch_ = delivery_.TakeScratch();
  reader_.LandElsewhere(scratch_.data());
  landing_ = Landing::Scratch();
}

bool SocketChannel::is_handshake() const {
  return !peer_.has_value() || reader_.header().kind == FrameKind::kRefusal;
}

Buffer SocketChannel::Payload() const {
  if (landing_.kind == Landing::Kind::kPlace) return landing_.place;
  return Buffer::View(scratch_.data(), reader_.header().payload_bytes);
}

Channel::Received SocketChannel::Receive() {
  using Next = FrameReader::Next;
  // Begins with the complete frame that had to wait, if any.
  int64_t bytes = 0;
  if (std::exchange(complete_, false)) {
    if (auto ended = Deliver(); ended.has_value()) return *std::move(ended);
  }
  while (!stopped_) {
    if (bytes > kTurnBytes) return {Received::Kind::kTurnOver, {}, {}};
    const absl::StatusOr<Next> next = reader_.Read(socket_.get());
    if (!next.ok()) return Broken(next.status());
    std::optional<Received> ended;
    switch (*next) {
      case Next::kNothing:
        return {};
      case Next::kEnd:
        return Broken(UnavailableError(
            "the connection was lost: the peer closed it without a reason"));
      case Next::kHeader:
        ended = Announce();
        break;
      case Next::kFrame:
        bytes += kFrameHeaderBytes + reader_.header().payload_bytes;
        ended = OnComplete();
        break;
    }
    if (ended.has_value()) return *std::move(ended);
  }
  return {};
}

std::optional<Channel::Received> SocketChannel::Announce() {
  const FrameHeader& header = reader_.header();
  absl::StatusOr<Landing> landing = Landing::Scratch();
  if (is_handshake()) {
    if (header.payload_bytes > kSmallBytesMax) {
      return Broken(InvalidArgumentError(DescribeFrame(header), ": at most ",
                                         kSmallBytesMax,
                                         " bytes are allowed in a handshake"));
    }
    // Processes that are not admitted yet get no more memory than a handshake
    // needs.
    scratch_ = Buffer::Allocate(kSmallBytesMax);
  } else if (IsAlive(header)) {
    landing = Landing::Discard();
  } else {
    landing = delivery_.Announce(*peer_, header);
    if (!landing.ok()) return Refused(landing.status());
  }
  if (landing->kind == Landing::Kind::kWait) {
    return Received{Received::Kind::kWaits, {}, {}};
  }
  landing_ = *std::move(landing);
  announced_at_ = delivery_.version();
  landing_now_ = true;
  switch (landing_.kind) {
    case Landing::Kind::kPlace:
      reader_.Land(landing_.place.data());
      break;
    case Landing::Kind::kScratch:
      if (scratch_.bytes() == 0) scratch_ = delivery_.TakeScratch();
      NEREUS_CHECK(scratch_.bytes() >= header.payload_bytes)
          << DescribeFrame(header);
      reader_.Land(scratch_.data());
      break;
    default:
      reader_.Land(nullptr);
  }
  return std::nullopt;
}

std::optional<Channel::Received> SocketChannel::OnComplete() {
  landing_now_ = false;
  const FrameHeader& header = reader_.header();
  if (landing_.kind == Landing::Kind::kDiscard) {
    if (peer_.has_value()) counters_->CountReceived(header);
    return std::nullopt;
  }
  if (header.payload_bytes > 0 && reader_.payload_crc() != header.payload_crc) {
    return Broken(CheckPayload(header, Payload()));
  }
  if (!is_handshake()) return Deliver();
  // The frame takes the memory: the connection may replace this channel next.
  const Buffer payload = std::exchange(scratch_, Buffer());
  return Received{Received::Kind::kHandshake,
                  {},
                  {header, payload.Slice(0, header.payload_bytes)}};
}

std::optional<Channel::Received> SocketChannel::Deliver() {
  // Drops a frame that was announced in a Poll and completed in Shutdown, where
  // there is no handler.
  if (!delivery_.has_handler()) return std::nullopt;
  Frame frame;
  frame.header = reader_.header();
  frame.payload = Payload();
  if (announced_at_ != delivery_.version()) {
    // The handler's state may have changed since Announce, so announces again.
    absl::StatusOr<Landing> landing = delivery_.Announce(*peer_, frame.header);
    if (!landing.ok()) return Refused(landing.status());
    if (landing->kind == Landing::Kind::kWait) {
      // Frees the place, because another frame may land there meanwhile.
      if (landing_.kind == Landing::Kind::kPlace) MoveToScratch();
      complete_ = true;
      return Received{Received::Kind::kWaits, {}, {}};
    }
    if (landing->kind == Landing::Kind::kDiscard) {
      counters_->CountReceived(frame.header);
      delivery_.GiveBack(std::exchange(scratch_, Buffer()));
      landing_ = Landing();
      return std::nullopt;
    }
    if (landing->kind == Landing::Kind::kPlace) {
      const Buffer& place = landing->place;
      if (place.data() != frame.payload.data() && place.bytes() > 0) {
        std::memcpy(place.data(), frame.payload.data(),
                    static_cast<size_t>(place.bytes()));
      }
      frame.payload = place;
    }
  }
  counters_->CountReceived(frame.header);
  landing_ = Landing();
  // Takes the scratch out of this object: the handler may stop this channel,
  // and Stop must not give back the memory that the handler is reading.
  Buffer scratch = std::exchange(scratch_, Buffer());
  delivery_.Deliver(*peer_, frame);
  delivery_.GiveBack(std::move(scratch));
  return std::nullopt;
}

}  // namespace nereus
