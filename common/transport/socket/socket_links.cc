// The connections that a SocketTransport makes: names, attempts, time limits.

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/socket_transport.h"

namespace nereus {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(20);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
// Any attempt may take so long, and be it the only one.
constexpr absl::Duration kAttemptMin = absl::Milliseconds(200);

}  // namespace

void SocketTransport::Connect(PeerId peer, const std::string& address,
                              absl::Time deadline) {
  Link& link = links_[peer];
  if (stopping_ || link.state == Link::State::kUp) return;
  // An attempt under way goes on: only where it goes if it fails is new.
  if (link.state != Link::State::kConnecting) {
    link.state = Link::State::kConnecting;
    link.connection = nullptr;
  }
  if (link.address != address) link.resolving = false;
  link.address = address;
  link.attempted = false;
  link.deadline = deadline;
  link.next_attempt = absl::InfinitePast();
  link.backoff = kBackoffMin;
  link.last_error = "no attempt was made";
  link.found.clear();
  due_ = absl::InfinitePast();
}

void SocketTransport::Disconnect(PeerId peer) {
  TakeInbox();  // What was sent before this is dropped as well.
  const auto found = links_.find(peer);
  if (found == links_.end()) return;
  Link& link = found->second;
  const ConnectionPtr connection = link.connection;
  StopConnecting(link);
  if (connection == nullptr) return;
  std::erase(waiting_, connection);
  // The peer is to hear that this was no end, and nothing that is in the
  // kernel.
  AbortOnClose(connection->socket);
  Close(*connection);
}

void SocketTransport::StopConnecting(Link& link) {
  link.state = Link::State::kIdle;
  link.connection = nullptr;
  link.resolving = false;
  // Their owners may send the next ones meanwhile.
  std::exchange(link.waiting, {}).clear();
}

void SocketTransport::RunTimers() {
  const absl::Time now = absl::Now();
  if (now < due_) return;
  due_ = absl::InfiniteFuture();
  if (accept_at_ <= now && !stopping_) {
    accept_at_ = absl::InfiniteFuture();
    WatchListener(true);
  }
  Due(accept_at_);
  std::vector<ConnectionPtr> late;
  for (const auto& [key, connection] : connections_) {
    if (connection->deadline <= now) {
      late.push_back(connection);
    } else {
      Due(connection->deadline);
    }
  }
  for (const ConnectionPtr& connection : late) {
    if (connection->state == Connection::State::kGone) continue;
    connection->deadline = absl::InfiniteFuture();
    const absl::Status reason =
        absl::UnavailableError(connection->deadline_reason);
    if (connection->state == Connection::State::kStranger) {
      NEREUS_LOG(Debug) << "hung up on " << connection->address << ": "
                        << reason.message();
      Close(*connection);
    } else if (connection->state == Connection::State::kEnding) {
      Close(*connection);
    } else {
      AttemptFailed(*connection, reason);
    }
  }
  RunAttempts(now);
}

void SocketTransport::RunAttempts(absl::Time now) {
  std::vector<PeerId> late;
  for (auto& [peer, link] : links_) {
    if (link.state != Link::State::kConnecting || link.connection != nullptr) {
      continue;
    }
    // The owner may have been away for longer than it has given this.
    const bool may_try =
        identity_.has_value() && !link.attempted && !link.resolving;
    if (now >= link.deadline && !may_try) {
      late.push_back(peer);
      continue;
    }
    if (now < link.deadline) Due(link.deadline);
    if (!identity_.has_value() || link.resolving) continue;
    if (link.next_attempt > now) {
      Due(link.next_attempt);
    } else {
      Attempt(peer, link);
    }
  }
  for (const PeerId peer : late) {
    // The handler may have changed its mind when it heard of another one.
    const Link& link = links_[peer];
    if (link.state != Link::State::kConnecting || link.connection != nullptr ||
        now < link.deadline) {
      continue;
    }
    GiveUp(peer, absl::UnavailableError(absl::StrCat(
                     "not reached before the deadline: ", link.last_error)));
  }
}

void SocketTransport::Attempt(PeerId peer, Link& link) {
  link.attempted = true;
  const auto failed = [&](const absl::Status& reason) {
    link.last_error = std::string(reason.message());
    link.next_attempt = absl::Now() + link.backoff;
    link.backoff = std::min(link.backoff * 2, kBackoffMax);
    Due(link.next_attempt);
  };
  if (link.found.empty()) {
    auto numeric = Resolve(link.address, /*numeric_only=*/true);
    if (!numeric.ok()) {
      link.resolving = true;
      resolver_->Ask(link.address);
      return;
    }
    link.found = *std::move(numeric);
  }
  const SocketAddress address = link.found.front();
  link.found.erase(link.found.begin());
  absl::StatusOr<Descriptor> socket = BeginConnect(address);
  if (!socket.ok()) return failed(socket.status());
  const auto connection = std::make_shared<Connection>(
      *std::move(socket), link.address, Connection::State::kDialling);
  connection->peer = peer;
  connection->deadline =
      std::min(absl::Now() + options_.handshake_timeout,
               std::max(link.deadline, absl::Now() + kAttemptMin));
  connection->deadline_reason = "no answer in time";
  Due(connection->deadline);
  connections_[connection.get()] = connection;
  link.connection = connection;
  Watch(*connection, EPOLLOUT);
}

void SocketTransport::TakeAnswers() {
  for (Resolver::Answer& answer : resolver_->Take()) {
    for (auto& [peer, link] : links_) {
      if (!link.resolving || link.address != answer.address) continue;
      link.resolving = false;
      due_ = absl::InfinitePast();
      if (answer.found.ok()) {
        link.found = *answer.found;
        continue;
      }
      link.last_error = std::string(answer.found.status().message());
      link.next_attempt = absl::Now() + link.backoff;
      link.backoff = std::min(link.backoff * 2, kBackoffMax);
    }
  }
}

void SocketTransport::OnDialled(Connection& connection) {
  const absl::Status result = ConnectResult(connection.socket);
  if (!result.ok()) return AttemptFailed(connection, result);
  const auto each = roster_.find(*connection.peer);
  if (each == roster_.end()) {
    return AttemptFailed(
        connection, absl::UnavailableError("it has no place in the job yet"));
  }
  Hello hello = *identity_;
  hello.intended = *connection.peer;
  Offer(connection, hello);
  connection.state = Connection::State::kGreeting;
  connection.writer.PushPreamble(
      EncodePreamble({hello.intended, each->second}));
  connection.writer.Push(HelloFrame(hello));
  MarkDirty(connection);
}

void SocketTransport::AttemptFailed(Connection& connection,
                                    const absl::Status& reason) {
  const PeerId peer = *connection.peer;
  Link& link = links_[peer];
  const bool current = link.connection.get() == &connection;
  Close(connection);
  if (!current) return;
  link.connection = nullptr;
  AttemptOver(peer, reason);
}

void SocketTransport::AttemptOver(PeerId peer, const absl::Status& reason) {
  if (!absl::IsUnavailable(reason)) return GiveUp(peer, reason);
  Link& link = links_[peer];
  link.last_error = std::string(reason.message());
  link.next_attempt =
      link.found.empty() ? absl::Now() + link.backoff : absl::InfinitePast();
  link.backoff = std::min(link.backoff * 2, kBackoffMax);
  Due(link.next_attempt);
}

void SocketTransport::GiveUp(PeerId peer, const absl::Status& reason) {
  Link& link = links_[peer];
  const absl::Status named(
      reason.code(),
      absl::StrCat("cannot connect to ", link.address, ": ", reason.message()));
  StopConnecting(link);
  if (handler_ == nullptr) return;
  ++deliveries_;
  delivered_ = true;
  handler_->OnDisconnected(peer, named);
}

}  // namespace nereus
