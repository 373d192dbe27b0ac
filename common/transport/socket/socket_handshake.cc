// The handshakes of SocketTransport: who may connect to whom.

#include <poll.h>
#include <sys/epoll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/socket_transport.h"

namespace nereus {
namespace {

// Of connections that come in; the others have to wait a turn.
constexpr int kAcceptsPerTurn = 64;
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// Whether the peer has closed its side, or all is lost; what has come in before
// may not have been read.
bool HasEnded(const Descriptor& socket) {
  pollfd asked = {socket.get(), POLLRDHUP, 0};
  return poll(&asked, 1, 0) > 0 && asked.revents != 0;
}

// What the connecting side is told: what may be different soon, as such.
absl::Status ComeAgain(const absl::Status& status) {
  return absl::IsUnavailable(status)
             ? absl::UnavailableError(NotReadyReason(status.message()))
             : status;
}

}  // namespace

void SocketTransport::WatchListener(bool on) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &listener_;
  (void)epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL,
                  listener_.socket.get(), &event);
}

void SocketTransport::AcceptAll() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Accepted accepted = Accept(listener_.socket);
    if (!accepted.socket.valid()) {
      if (!accepted.exhausted) return;
      // Whoever waits would be announced again and again.
      NEREUS_LOG(Warning) << "cannot accept connections for now: no file "
                             "descriptors are left";
      WatchListener(false);
      accept_at_ = absl::Now() + kAcceptPause;
      return Due(accept_at_);
    }
    if (stopping_ || strangers_ >= options_.handshakes_max) {
      NEREUS_LOG(Debug) << "hung up on " << accepted.address << ": "
                        << strangers_ << " handshakes are under way";
      continue;
    }
    const auto connection = std::make_shared<Connection>(
        std::move(accepted.socket), std::move(accepted.address),
        Connection::State::kStranger);
    connection->preamble_read = false;
    connection->deadline = absl::Now() + options_.handshake_timeout;
    connection->deadline_reason = absl::StrCat(
        "no hello within ", absl::FormatDuration(options_.handshake_timeout));
    Due(connection->deadline);
    connection->counted = true;
    ++strangers_;
    connections_[connection.get()] = connection;
    Watch(*connection, EPOLLIN);
  }
}

absl::Status SocketTransport::ReadPreamble(Connection& connection) {
  PreambleBytes bytes;
  NEREUS_ASSIGN_OR_RETURN(
      connection.preamble_read,
      connection.reader.ReadPreamble(connection.socket.get(), bytes));
  if (!connection.preamble_read) return absl::OkStatus();
  NEREUS_ASSIGN_OR_RETURN(const Preamble preamble, DecodePreamble(bytes));
  if (!identity_.has_value()) {
    return absl::UnavailableError(
        NotReadyReason("it has no place in the job yet"));
  }
  if (preamble.intended != identity_->self) {
    return absl::FailedPreconditionError(
        absl::StrCat("handshake: ", PeerName(preamble.intended),
                     " was dialled, ", PeerName(identity_->self), " answers"));
  }
  // In one comparison, which takes the same time whatever the difference is.
  if ((preamble.token ^ identity_->incarnation) != 0) {
    return absl::UnavailableError(
        NotReadyReason("another process is meant by this token"));
  }
  return absl::OkStatus();
}

void SocketTransport::OnIntroduction(Connection& connection,
                                     const Frame& frame) {
  const absl::Status admitted = [&]() -> absl::Status {
    NEREUS_ASSIGN_OR_RETURN(const Hello theirs, ReadHello(frame));
    return Admit(connection, theirs);
  }();
  if (!admitted.ok()) Refuse(connection, admitted);
}

absl::Status SocketTransport::Admit(Connection& connection,
                                    const Hello& theirs) {
  if (stopping_) {
    return absl::UnavailableError(NotReadyReason("it is shutting down"));
  }
  NEREUS_RETURN_IF_ERROR(ComeAgain(CheckHello(*identity_, theirs, roster_)));
  Link& link = links_[theirs.self];
  if (link.state == Link::State::kUp) {
    if (HasEnded(link.connection->socket)) {
      return absl::UnavailableError(
          NotReadyReason("it still deals with the end of the last connection"));
    }
    return absl::AlreadyExistsError(absl::StrCat(
        "handshake: ", PeerName(theirs.self), " is connected to ",
        PeerName(identity_->self), " already, from ", link.connection->address,
        "; this one comes from ", connection.address));
  }
  // The peer connected first.
  if (link.connection != nullptr) Close(*link.connection);
  Hello ours = *identity_;
  ours.intended = theirs.self;
  std::unique_ptr<SharedFrames> shared = TakeOffer(connection, theirs);
  if (shared != nullptr) ours.shared_memory = theirs.shared_memory;
  connection.writer.Push(HelloFrame(ours));
  if (shared != nullptr) {
    // The last thing that goes through the socket, where nothing went before.
    const auto all = connection.writer.Write(connection.socket.get());
    if (!all.ok() || !*all) {
      return absl::UnavailableError(
          NotReadyReason("its answer did not fit into the socket"));
    }
    connection.shared = std::move(shared);
  }
  Establish(connection, theirs.self);
  return absl::OkStatus();
}

void SocketTransport::OnAnswer(Connection& connection, const Frame& frame) {
  if (frame.header.kind == FrameKind::kRefusal) {
    return RefusedByPeer(connection, ReadRefusal(frame));
  }
  const absl::Status completed = [&]() -> absl::Status {
    NEREUS_ASSIGN_OR_RETURN(const Hello theirs, ReadHello(frame));
    return Complete(connection, theirs);
  }();
  if (!completed.ok()) Refuse(connection, completed);
}

absl::Status SocketTransport::Complete(Connection& connection,
                                       const Hello& theirs) {
  if (theirs.self != *connection.peer) {
    return absl::FailedPreconditionError(
        absl::StrCat("handshake: ", PeerName(*connection.peer),
                     " was dialled, ", PeerName(theirs.self), " answers"));
  }
  NEREUS_RETURN_IF_ERROR(CheckHello(*identity_, theirs, roster_));
  NEREUS_RETURN_IF_ERROR(TakeAnswerTo(connection, theirs));
  Establish(connection, *connection.peer);
  return absl::OkStatus();
}

void SocketTransport::Establish(Connection& connection, PeerId peer) {
  if (std::exchange(connection.counted, false)) --strangers_;
  connection.state = Connection::State::kOpen;
  connection.deadline = absl::InfiniteFuture();
  connection.peer = peer;
  {
    std::lock_guard<std::mutex> lock(traffic_mu_);
    std::shared_ptr<TrafficCounters>& counters = traffic_[peer];
    if (counters == nullptr) counters = std::make_shared<TrafficCounters>();
    connection.counters = counters;
  }
  Link& link = links_[peer];
  link.state = Link::State::kUp;
  link.resolving = false;
  link.connection = connections_.at(&connection);
  if (connection.shared != nullptr) shared_.push_back(link.connection);
  for (Frame& frame : std::exchange(link.waiting, {})) {
    connection.writer.Push(std::move(frame));
  }
  MarkDirty(connection);
  NEREUS_LOG(Debug) << "connected to " << PeerName(peer) << " ("
                    << connection.address
                    << (connection.shared != nullptr ? ", by shared memory)"
                                                     : ")");
  if (handler_ == nullptr) return;
  ++deliveries_;
  delivered_ = true;
  handler_->OnConnected(peer);
}

void SocketTransport::Refuse(Connection& connection,
                             const absl::Status& reason) {
  const Connection::State state = connection.state;
  if (state == Connection::State::kStranger) {
    const char* const what = "refused a connection from ";
    if (absl::IsUnavailable(reason)) {
      NEREUS_LOG(Debug) << what << connection.address << ": "
                        << reason.message();
    } else {
      NEREUS_LOG(Warning) << what << connection.address << ": "
                          << reason.message();
    }
  } else if (state == Connection::State::kOpen) {
    NEREUS_LOG(Warning) << "ending the connection to "
                        << PeerName(*connection.peer) << " ("
                        << connection.address << "): " << reason.message();
  }
  connection.deadline = absl::Now() + options_.closing_timeout;
  Due(connection.deadline);
  const PeerId self = identity_.has_value() ? identity_->self : PeerId();
  BeginEnding(connection, RefusalFrame(self, reason.message()));
  connection.writer.DropWaiting();
  if (state == Connection::State::kOpen) {
    Detach(connection, reason);
  } else if (state == Connection::State::kGreeting) {
    Link& link = links_[*connection.peer];
    if (link.connection.get() != &connection) return;
    link.connection = nullptr;
    AttemptOver(*connection.peer, reason);
  }
}

void SocketTransport::BeginEnding(Connection& connection, Frame last) {
  connection.state = Connection::State::kEnding;
  connection.waits = connection.complete = connection.landed = false;
  // Nothing lands any more, in memory that others have a use for.
  connection.landing = Landing();
  GiveScratchBack(connection);
  connection.writer.PushLast(std::move(last));
  MarkDirty(connection);
}

void SocketTransport::RefusedByPeer(Connection& connection,
                                    const std::string& reason) {
  const absl::Status status = RefusalStatus(reason);
  if (connection.state == Connection::State::kGreeting) {
    return AttemptFailed(
        connection,
        status.ok() ? absl::UnavailableError("it has ended") : status);
  }
  Lost(connection, status);
}

}  // namespace nereus
