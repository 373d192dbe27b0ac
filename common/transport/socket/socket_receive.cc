// What comes in at a SocketTransport.

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/socket_transport.h"

namespace nereus {
namespace {

// What one connection may deliver before the others have their turn.
constexpr int64_t kTurnBytes = 2 * 1024 * 1024;

constexpr int64_t kSmallBytesMax = std::max(kHelloBytesMax, kRefusalBytesMax);

}  // namespace

void SocketTransport::Receive(Connection& connection) {
  using Next = FrameReader::Next;
  const int fd = connection.socket.get();
  int64_t bytes = 0;
  while (connection.state != Connection::State::kGone && !connection.waits) {
    if (bytes > kTurnBytes) {
      // Some of it may be read already, of which epoll knows nothing.
      if (!std::exchange(connection.again, true)) {
        again_.push_back(connections_.at(&connection));
      }
      return;
    }
    if (connection.shared != nullptr &&
        connection.state == Connection::State::kOpen) {
      return ReceiveShared(connection);
    }
    if (connection.state == Connection::State::kEnding) {
      // It must be read, or the peer would not hear the end for the reset.
      const absl::StatusOr<Next> drained = FrameReader::Drain(fd);
      if (!drained.ok() || *drained == Next::kEnd) Close(connection);
      return;
    }
    if (!connection.preamble_read) {
      const absl::Status greeted = ReadPreamble(connection);
      if (!greeted.ok()) return Broken(connection, greeted);
      if (!connection.preamble_read) return;
    }
    const absl::StatusOr<Next> next = connection.reader.Read(fd);
    if (!next.ok()) return Broken(connection, next.status());
    switch (*next) {
      case Next::kNothing:
        return;
      case Next::kEnd:
        return Broken(connection,
                      absl::UnavailableError("the connection was lost: it was "
                                             "closed without a word"));
      case Next::kHeader:
        if (!Announce(connection)) return;
        break;
      case Next::kFrame:
        bytes += kFrameHeaderBytes + connection.reader.header().payload_bytes;
        if (!Take(connection)) return;
        break;
    }
  }
}

bool SocketTransport::Announce(Connection& connection) {
  const FrameHeader& header = connection.reader.header();
  const bool small = header.kind == FrameKind::kRefusal ||
                     connection.state != Connection::State::kOpen;
  if (!small) return Land(connection, LandingOf(connection, header));
  if (header.payload_bytes > kSmallBytesMax) {
    Broken(connection, absl::InvalidArgumentError(absl::StrCat(
                           DescribeFrame(header), ": at most ", kSmallBytesMax,
                           " bytes are allowed in a handshake")));
    return false;
  }
  // Strangers are given no more memory than they need.
  connection.scratch = Buffer::Allocate(kSmallBytesMax);
  return Land(connection, Landing::Scratch());
}

absl::StatusOr<Landing> SocketTransport::LandingOf(const Connection& connection,
                                                   const FrameHeader& header) {
  if (handler_ == nullptr) return Landing::Discard();
  if (header.kind == FrameKind::kHello) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": a second hello on one connection"));
  }
  absl::StatusOr<Landing> landing =
      handler_->OnHeader(*connection.peer, header);
  if (landing.ok() && landing->kind == Landing::Kind::kPlace) {
    NEREUS_CHECK(landing->place.bytes() == header.payload_bytes)
        << DescribeFrame(header) << ": was given a place of "
        << landing->place.bytes() << " bytes";
  }
  return landing;
}

bool SocketTransport::Land(Connection& connection,
                           absl::StatusOr<Landing> landing) {
  if (!landing.ok()) {
    Refuse(connection, landing.status());
    return false;
  }
  if (landing->kind == Landing::Kind::kWait) {
    connection.waits = true;
    waiting_.push_back(connections_.at(&connection));
    Watch(connection, connection.watched & ~EPOLLIN);
    return false;
  }
  const FrameHeader& header = connection.reader.header();
  connection.landing = *std::move(landing);
  connection.announced_at = deliveries_;
  connection.landed = true;
  switch (connection.landing.kind) {
    case Landing::Kind::kPlace:
      connection.reader.Land(connection.landing.place.data());
      break;
    case Landing::Kind::kScratch:
      if (connection.scratch.bytes() == 0) connection.scratch = TakeScratch();
      NEREUS_CHECK(connection.scratch.bytes() >= header.payload_bytes)
          << DescribeFrame(header);
      connection.reader.Land(connection.scratch.data());
      break;
    default:
      connection.reader.Land(nullptr);
  }
  return true;
}

bool SocketTransport::Take(Connection& connection) {
  connection.landed = false;
  const FrameHeader& header = connection.reader.header();
  if (connection.landing.kind == Landing::Kind::kDiscard) {
    if (connection.state == Connection::State::kOpen) {
      connection.CountReceived();
    }
    return true;
  }
  const bool placed = connection.landing.kind == Landing::Kind::kPlace;
  if (header.payload_bytes > 0 &&
      connection.reader.payload_crc() != header.payload_crc) {
    const Buffer payload = Buffer::View(
        placed ? connection.landing.place.data() : connection.scratch.data(),
        header.payload_bytes);
    Broken(connection, CheckPayload(header, payload));
    return false;
  }
  const bool small = header.kind == FrameKind::kRefusal ||
                     connection.state != Connection::State::kOpen;
  return small ? TakeSmall(connection) : Deliver(connection);
}

bool SocketTransport::TakeSmall(Connection& connection) {
  Frame frame;
  frame.header = connection.reader.header();
  frame.payload =
      Buffer::View(connection.scratch.data(), frame.header.payload_bytes);
  if (connection.state == Connection::State::kStranger) {
    OnIntroduction(connection, frame);
  } else if (connection.state == Connection::State::kGreeting) {
    OnAnswer(connection, frame);
  } else {
    RefusedByPeer(connection, ReadRefusal(frame));
  }
  GiveScratchBack(connection);
  return true;
}

bool SocketTransport::Deliver(Connection& connection) {
  const PeerId peer = *connection.peer;
  Frame frame;
  frame.header = connection.reader.header();
  const bool placed = connection.landing.kind == Landing::Kind::kPlace;
  frame.payload = placed ? connection.landing.place
                         : Buffer::View(connection.scratch.data(),
                                        frame.header.payload_bytes);
  if (handler_ == nullptr) return true;
  if (connection.announced_at != deliveries_) {
    // The handler has changed since it said where this was to go.
    absl::StatusOr<Landing> landing = handler_->OnHeader(peer, frame.header);
    if (!landing.ok()) {
      Refuse(connection, landing.status());
      return false;
    }
    connection.complete = landing->kind == Landing::Kind::kWait;
    if (connection.complete) {
      if (placed) {  // Others may get that place meanwhile.
        connection.scratch = TakeScratch();
        connection.reader.LandElsewhere(connection.scratch.data());
        connection.landing = Landing::Scratch();
      }
      connection.waits = true;
      waiting_.push_back(connections_.at(&connection));
      Watch(connection, connection.watched & ~EPOLLIN);
      return false;
    }
    if (landing->kind == Landing::Kind::kDiscard) {
      connection.CountReceived();
      GiveScratchBack(connection);
      connection.landing = Landing();
      return true;
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
  connection.CountReceived();
  ++deliveries_;
  delivered_ = true;
  // The handler may end this connection, which must not give away the memory
  // that it is reading.
  const ConnectionPtr kept = connections_.at(&connection);
  connection.landing = Landing();
  Buffer scratch = std::exchange(connection.scratch, Buffer());
  handler_->OnFrame(peer, frame);
  connection.scratch = std::move(scratch);
  GiveScratchBack(connection);
  return connection.state != Connection::State::kGone;
}

void SocketTransport::RetryWaiting() {
  for (const ConnectionPtr& connection : std::exchange(waiting_, {})) {
    if (connection->state != Connection::State::kOpen) continue;
    connection->waits = false;
    if (connection->shared != nullptr) {
      ReceiveShared(*connection);
      continue;
    }
    const bool goes_on = std::exchange(connection->complete, false)
                             ? Deliver(*connection)
                             : Announce(*connection);
    if (connection->waits || connection->state == Connection::State::kGone) {
      continue;
    }
    Watch(*connection, connection->watched | EPOLLIN);
    if (goes_on) Receive(*connection);
  }
}

void SocketTransport::Broken(Connection& connection,
                             const absl::Status& reason) {
  switch (connection.state) {
    case Connection::State::kStranger:
      // One that goes away is nobody's loss.
      if (connection.preamble_read || absl::IsInvalidArgument(reason)) {
        Refuse(connection, reason);
      } else {
        Close(connection);
      }
      return;
    case Connection::State::kGreeting:
    case Connection::State::kDialling:
      return AttemptFailed(
          connection,
          absl::IsInvalidArgument(reason)
              ? absl::FailedPreconditionError(absl::StrCat(
                    "something answers there that is not a Nereus socket: ",
                    reason.message()))
              : reason);
    case Connection::State::kOpen:
      if (absl::IsInvalidArgument(reason)) return Refuse(connection, reason);
      return Lost(connection, reason);
    case Connection::State::kEnding:
    case Connection::State::kGone:
      return Close(connection);
  }
}

void SocketTransport::Lost(Connection& connection, const absl::Status& reason) {
  const ConnectionPtr kept = connections_.at(&connection);
  Close(connection);
  Detach(connection, reason);
}

void SocketTransport::Detach(Connection& connection,
                             const absl::Status& reason) {
  const PeerId peer = *connection.peer;
  Link& link = links_[peer];
  if (link.connection.get() != &connection) return;
  StopConnecting(link);
  if (handler_ == nullptr) return;
  ++deliveries_;
  delivered_ = true;
  handler_->OnDisconnected(peer, reason);
}

Buffer SocketTransport::TakeScratch() {
  if (scratches_.empty()) return Buffer::Allocate(kFramePayloadBytesMax);
  Buffer scratch = std::move(scratches_.back());
  scratches_.pop_back();
  return scratch;
}

void SocketTransport::GiveScratchBack(Connection& connection) {
  Buffer scratch = std::exchange(connection.scratch, Buffer());
  if (scratch.bytes() == kFramePayloadBytesMax) {
    scratches_.push_back(std::move(scratch));
  }
}

}  // namespace nereus
