// Frames of a SocketTransport's peers on the same host, through memory.

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/socket_transport.h"

namespace nereus {
namespace {

// What one connection may deliver before the others have their turn.
constexpr int64_t kTurnBytes = 2 * 1024 * 1024;

// Tells the peer to look. One that has not read the last such byte will anyway;
// and that the connection has ended is for whoever reads to find.
void WakePeer(const Descriptor& socket) {
  const uint8_t byte = 0;
  (void)!send(socket.get(), &byte, sizeof(byte), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

void SocketTransport::Offer(Connection& connection, Hello& hello) {
  if (!options_.shared_memory || !IsOnSameHost(connection.socket)) return;
  auto memory = SharedMemory::Create(SharedFrames::kBytes);
  if (!memory.ok()) {
    NEREUS_LOG(Debug) << connection.address << ": " << memory.status();
    return;
  }
  hello.shared_memory = memory->offer();
  connection.offered =
      std::make_unique<SharedFrames>(*std::move(memory), /*is_creator=*/true);
}

absl::Status SocketTransport::TakeAnswerTo(Connection& connection,
                                           const Hello& theirs) {
  std::unique_ptr<SharedFrames> offered = std::move(connection.offered);
  if (!theirs.shared_memory.has_value()) return absl::OkStatus();
  if (offered == nullptr || offered->memory.offer() != *theirs.shared_memory) {
    return absl::FailedPreconditionError(
        "handshake: it has taken shared memory that was not offered");
  }
  if (!connection.writer.empty()) {
    return absl::FailedPreconditionError(
        "handshake: it has answered before it was greeted");
  }
  offered->memory.Settle();
  connection.shared = std::move(offered);
  return absl::OkStatus();
}

std::unique_ptr<SharedFrames> SocketTransport::TakeOffer(
    const Connection& connection, const Hello& theirs) const {
  if (!options_.shared_memory || !theirs.shared_memory.has_value()) {
    return nullptr;
  }
  auto memory = SharedMemory::Open(*theirs.shared_memory, SharedFrames::kBytes);
  if (!memory.ok()) {
    // As if it were on another host.
    NEREUS_LOG(Info) << PeerName(theirs.self) << " (" << connection.address
                     << ") is reached by its socket alone: "
                     << memory.status().message();
    return nullptr;
  }
  memory->Settle();
  return std::make_unique<SharedFrames>(*std::move(memory),
                                        /*is_creator=*/false);
}

void SocketTransport::ReceiveShared(Connection& connection) {
  SharedFrames& shared = *connection.shared;
  if (!shared.ended.has_value()) {
    const absl::StatusOr<FrameReader::Next> drained =
        FrameReader::Drain(connection.socket.get());
    if (!drained.ok()) {
      shared.ended = drained.status();
    } else if (*drained == FrameReader::Next::kEnd) {
      shared.ended = absl::UnavailableError(
          "the connection was lost: it was closed without a word");
    }
    // It would be announced for ever.
    if (shared.ended.has_value()) Watch(connection, 0);
  }
  int64_t bytes = 0;
  while (connection.state == Connection::State::kOpen && !connection.waits) {
    if (bytes > kTurnBytes) break;  // What is left, the next turn finds.
    Frame frame;
    const absl::StatusOr<bool> found =
        shared.reader.Front(frame.header, frame.payload);
    if (!found.ok()) return Broken(connection, found.status());
    if (!*found) break;
    frame.header.payload_crc = 0;  // Nobody has looked.
    bytes += kFrameHeaderBytes + frame.payload.bytes();
    if (!TakeShared(connection, std::move(frame))) break;
  }
  if (connection.state != Connection::State::kOpen) return;
  if (shared.ended.has_value() && !connection.waits && shared.reader.empty()) {
    Broken(connection, *shared.ended);
  }
}

bool SocketTransport::TakeShared(Connection& connection, Frame frame) {
  const FrameHeader& header = frame.header;
  if (header.kind == FrameKind::kRefusal) {
    const Buffer copy = Buffer::Allocate(frame.payload.bytes());
    std::memcpy(copy.data(), frame.payload.data(),
                static_cast<size_t>(copy.bytes()));
    RefusedByPeer(connection, ReadRefusal({header, copy}));
    return false;
  }
  const absl::StatusOr<Landing> landing = LandingOf(connection, header);
  if (!landing.ok()) {
    Refuse(connection, landing.status());
    return false;
  }
  if (landing->kind == Landing::Kind::kWait) {
    connection.waits = true;
    waiting_.push_back(connections_.at(&connection));
    return false;
  }
  connection.counters->received += kFrameHeaderBytes + header.payload_bytes;
  // The handler may end this connection, which must not give away the memory
  // that it is reading.
  const ConnectionPtr kept = connections_.at(&connection);
  if (landing->kind != Landing::Kind::kDiscard) {
    if (landing->kind == Landing::Kind::kPlace) {
      if (header.payload_bytes > 0) {
        std::memcpy(landing->place.data(), frame.payload.data(),
                    header.payload_bytes);
      }
      frame.payload = landing->place;
    }
    ++deliveries_;
    delivered_ = true;
    handler_->OnFrame(*connection.peer, frame);
  }
  kept->shared->reader.Pop();
  // At once, so that it writes while this side does its sums.
  if (kept->shared->reader.TakeSleeper()) WakePeer(kept->socket);
  return connection.state == Connection::State::kOpen;
}

void SocketTransport::Flush() {
  // Also those that wait for room. What came of it, an error too, is dealt with
  // when the turn goes on, since the handler, which may be what calls this, is
  // to hear of it.
  for (const auto& [key, connection] : connections_) {
    const bool writes = connection->state == Connection::State::kOpen &&
                        !connection->writer.empty();
    if (!writes) continue;
    MarkDirty(*connection);
    SharedFrames* const shared = connection->shared.get();
    if (shared == nullptr) {
      connection->writer.Write(connection->socket.get()).IgnoreError();
    } else if (connection->writer.Write(shared->writer).ok() &&
               shared->writer.TakeSleeper()) {
      WakePeer(connection->socket);
    }
  }
}

void SocketTransport::FlushShared(Connection& connection) {
  SharedFrames& shared = *connection.shared;
  const absl::StatusOr<bool> all = connection.writer.Write(shared.writer);
  if (!all.ok()) return Broken(connection, all.status());
  shared.blocked = !*all;
  if (shared.writer.TakeSleeper()) WakePeer(connection.socket);
  if (!*all || connection.state != Connection::State::kEnding) return;
  if (shared.ended.has_value()) return Close(connection);
  if (!std::exchange(connection.shut, true)) {
    shutdown(connection.socket.get(), SHUT_WR);
  }
}

bool SocketTransport::MaySleep() {
  bool may_sleep = true;
  for (const ConnectionPtr& connection : shared_) {
    SharedFrames& shared = *connection->shared;
    const bool reads =
        connection->state == Connection::State::kOpen && !connection->waits;
    may_sleep = may_sleep && (!reads || shared.reader.MaySleep()) &&
                (!shared.blocked || shared.writer.MaySleep());
  }
  return may_sleep;
}

void SocketTransport::RunShared() {
  std::erase_if(shared_, [](const ConnectionPtr& connection) {
    return connection->state == Connection::State::kGone;
  });
  // Handlers may add some, and end some.
  const size_t count = shared_.size();
  for (size_t i = 0; i < count; ++i) {
    const ConnectionPtr connection = shared_[i];
    SharedFrames& shared = *connection->shared;
    shared.reader.Awake();
    shared.writer.Awake();
    const bool reads =
        connection->state == Connection::State::kOpen && !connection->waits;
    if (reads && (!shared.reader.empty() || shared.ended.has_value())) {
      ReceiveShared(*connection);
    }
    if (shared.blocked) MarkDirty(*connection);
  }
}

}  // namespace nereus
