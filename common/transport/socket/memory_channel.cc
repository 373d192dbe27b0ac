#include "common/transport/socket/memory_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "common/transport/socket/frame_reader.h"

namespace nereus {
namespace {

// Bytes that one connection may deliver before the others have their turn.
constexpr int64_t kTurnBytes = 2 * 1024 * 1024;

}  // namespace

MemoryChannel::MemoryChannel(SharedMemory memory, bool is_creator,
                             const Descriptor& socket, Delivery& delivery)
    : socket_(socket),
      delivery_(delivery),
      memory_(std::move(memory)),
      writer_(memory_.data() + (is_creator ? 0 : FrameRing::kBytes)),
      reader_(memory_.data() + (is_creator ? FrameRing::kBytes : 0)) {}

absl::StatusOr<std::unique_ptr<MemoryChannel>> MemoryChannel::Create(
    const Descriptor& socket, Delivery& delivery) {
  SharedMemory memory = NEREUS_TRY(SharedMemory::Create(kBytes));
  return std::unique_ptr<MemoryChannel>(new MemoryChannel(
      std::move(memory), /*is_creator=*/true, socket, delivery));
}

absl::StatusOr<std::unique_ptr<MemoryChannel>> MemoryChannel::Accept(
    const SharedMemoryOffer& offer, const Descriptor& socket,
    Delivery& delivery) {
  SharedMemory memory = NEREUS_TRY(SharedMemory::Open(offer, kBytes));
  return std::unique_ptr<MemoryChannel>(new MemoryChannel(
      std::move(memory), /*is_creator=*/false, socket, delivery));
}

void MemoryChannel::Open(PeerId peer, TrafficCounters& counters) {
  peer_ = peer;
  counters_ = &counters;
  memory_.Settle();
}

absl::StatusOr<bool> MemoryChannel::Write(FrameWriter& frames) {
  const bool all = NEREUS_TRY(frames.Write(writer_));
  blocked_ = !all;
  if (writer_.TakeSleeper()) Ring();
  return all;
}

void MemoryChannel::Ring() {
  // If the socket is full, the peer has unread bytes and will look anyway. If
  // the socket has ended, reading finds that out.
  const uint8_t byte = 0;
  (void)!send(socket_.get(), &byte, sizeof(byte), MSG_DONTWAIT | MSG_NOSIGNAL);
}

uint32_t MemoryChannel::events(bool /*reads*/) const {
  // Asks for no event after the end of the socket, because epoll would report
  // that end again and again.
  return ended_.has_value() ? 0U : uint32_t{EPOLLIN};
}

void MemoryChannel::ReadBell() {
  // Reads all bytes that the peer has rung with: their number does not matter.
  if (ended_.has_value()) return;
  const absl::StatusOr<FrameReader::Next> drained =
      FrameReader::Drain(socket_.get());
  if (!drained.ok()) {
    ended_ = drained.status();
  } else if (*drained == FrameReader::Next::kEnd) {
    ended_ = UnavailableError(
        "the connection was lost: the peer closed it without a reason");
  }
}

Channel::Received MemoryChannel::Receive() {
  ReadBell();
  int64_t bytes = 0;
  while (!stopped_) {
    // The turn is over. Returns kNothing, because RunUnpolled looks at the ring
    // in each of its calls (HasWork).
    if (bytes > kTurnBytes) return {};
    Frame frame;
    const absl::StatusOr<bool> found =
        reader_.Front(frame.header, frame.payload);
    if (!found.ok()) return {Received::Kind::kBroken, found.status(), {}};
    if (!*found) break;
    // This side verifies no checksum, so the handler must not see one.
    frame.header.payload_crc = 0;
    bytes += kFrameHeaderBytes + frame.payload.bytes();
    auto ended = Take(std::move(frame));
    if (ended.has_value()) return *std::move(ended);
  }
  // Reports the end of the socket only when all frames that the peer wrote
  // before it are delivered.
  if (!stopped_ && ended_.has_value() && reader_.empty()) {
    return {Received::Kind::kBroken, *ended_, {}};
  }
  return {};
}

std::optional<Channel::Received> MemoryChannel::Take(Frame frame) {
  const FrameHeader& header = frame.header;
  heard_ = true;
  if (IsAlive(header)) {
    reader_.Pop();
    return std::nullopt;
  }
  if (header.kind == FrameKind::kRefusal) {
    // Copies the refusal to memory that the peer cannot change meanwhile.
    const Buffer copy = Buffer::Allocate(frame.payload.bytes());
    std::memcpy(copy.data(), frame.payload.data(),
                static_cast<size_t>(copy.bytes()));
    return Received{Received::Kind::kHandshake, {}, {header, copy}};
  }
  const absl::StatusOr<Landing> landing = delivery_.Announce(peer_, header);
  if (!landing.ok()) {
    return Received{Received::Kind::kRefused, landing.status(), {}};
  }
  if (landing->kind == Landing::Kind::kWait) {
    return Received{Received::Kind::kWaits, {}, {}};
  }
  counters_->CountReceived(header);
  if (landing->kind != Landing::Kind::kDiscard) {
    if (landing->kind == Landing::Kind::kPlace) {
      if (header.payload_bytes > 0) {
        std::memcpy(landing->place.data(), frame.payload.data(),
                    header.payload_bytes);
      }
      frame.payload = landing->place;
    }
    delivery_.Deliver(peer_, frame);
  }
  // Pops even if the handler has stopped this channel in Deliver: the memory is
  // still mapped.
  reader_.Pop();
  // Rings at once if the peer sleeps, so that it writes while this side works.
  if (reader_.TakeSleeper()) Ring();
  return std::nullopt;
}

bool MemoryChannel::MaySleep(bool reads) {
  return (!reads || reader_.MaySleep()) && (!blocked_ || writer_.MaySleep());
}

bool MemoryChannel::Awake() {
  reader_.Awake();
  writer_.Awake();
  return blocked_;
}

}  // namespace nereus
