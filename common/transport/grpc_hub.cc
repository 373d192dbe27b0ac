#include "common/transport/grpc_hub.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/transport/grpc_endpoint.h"
#include "common/transport/handshake.h"

namespace nereus {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(20);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);

absl::Status WithPeer(PeerId peer, const std::string& address,
                      const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(PeerName(peer), " at ", address, ": ",
                                   std::string(status.message())));
}

}  // namespace

GrpcHub::GrpcHub(const GrpcTransportOptions& options)
    : options_(options),
      unsent_(std::make_shared<UseCount>()),
      connections_(std::make_shared<UseCount>()) {}

GrpcHub::~GrpcHub() {
  NEREUS_CHECK(!timers_.joinable()) << "the hub was not shut down";
}

void GrpcHub::Start() {
  timers_ = std::thread([this] { RunTimers(); });
}

void GrpcHub::SetRoster(const Hello& self, Roster roster) {
  std::lock_guard<std::mutex> lock(mu_);
  identity_ = self;
  roster_ = std::move(roster);
  timers_changed_.notify_all();
}

void GrpcHub::Connect(PeerId peer, const std::string& address,
                      absl::Time deadline) {
  std::lock_guard<std::mutex> lock(mu_);
  Link& link = links_[peer];
  if (stopping_ || link.state == Link::State::kUp) return;
  // An attempt under way goes on: only where it goes if it fails is new.
  if (link.state != Link::State::kConnecting) {
    link.state = Link::State::kConnecting;
    link.connection = nullptr;
  }
  link.address = address;
  link.deadline = deadline;
  link.next_attempt = absl::InfinitePast();
  link.backoff = kBackoffMin;
  link.last_error = "no attempt was made";
  timers_changed_.notify_all();
}

void GrpcHub::Disconnect(PeerId peer) {
  Frames dropped;
  ConnectionPtr connection;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = links_.find(peer);
    if (found == links_.end()) return;
    connection = found->second.connection;
    ++found->second.disconnects;
    StopConnecting(found->second, dropped);
  }
  if (connection == nullptr) return;
  connection->Disown();
  connection->Abort(absl::CancelledError("this connection is not wanted"));
}

void GrpcHub::Send(PeerId to, const Frame& frame) {
  NEREUS_CHECK(frame.payload.bytes() == frame.header.payload_bytes &&
               frame.payload.bytes() <= kFramePayloadBytesMax)
      << DescribeFrame(frame.header) << ": the payload has "
      << frame.payload.bytes() << " bytes";
  GrpcConnection::OutgoingPtr outgoing = Outgoing(frame);
  ConnectionPtr connection;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (stopping_) return;
    Link& link = links_[to];
    switch (link.state) {
      case Link::State::kEnded:
        return;
      case Link::State::kIdle:
      case Link::State::kConnecting:
        link.waiting.push_back(std::move(outgoing));
        return;
      case Link::State::kUp:
        connection = link.connection;
        break;
    }
  }
  connection->Send(std::move(outgoing));
}

std::vector<TrafficCount> GrpcHub::traffic() const {
  std::vector<TrafficCount> counts;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [peer, link] : links_) {
      if (link.traffic == nullptr) continue;
      counts.push_back({peer, link.traffic->sent, link.traffic->received});
    }
  }
  std::sort(counts.begin(), counts.end(),
            [](const auto& a, const auto& b) { return a.peer < b.peer; });
  return counts;
}

std::deque<GrpcEvent> GrpcHub::TakeEvents(absl::Duration timeout) {
  return events_.Take(timeout);
}

void GrpcHub::Wake() { events_.Wake(); }

bool GrpcHub::Disconnected(const GrpcEvent& event) {
  std::lock_guard<std::mutex> lock(mu_);
  Link& link = links_[event.peer];
  if (event.connection == nullptr && event.disconnects != link.disconnects) {
    return false;
  }
  if (link.state == Link::State::kEnded &&
      link.connection == event.connection) {
    link.state = Link::State::kIdle;
    link.connection = nullptr;
  }
  return true;
}

void GrpcHub::Refuse(const ConnectionPtr& connection,
                     const absl::Status& reason) {
  PeerId self;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (identity_.has_value()) self = identity_->self;
    const auto live = live_.find(connection.get());
    if (live != live_.end()) {
      live->second.abort_at = std::min(live->second.abort_at,
                                       absl::Now() + options_.closing_timeout);
    }
    timers_changed_.notify_all();
  }
  const std::string text(reason.message());
  connection->End(Outgoing(RefusalFrame(self, text)), reason);
}

void GrpcHub::RefusedByPeer(const ConnectionPtr& connection,
                            const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto live = live_.find(connection.get());
    if (live != live_.end()) {
      live->second.abort_at = absl::Now() + options_.closing_timeout;
    }
    timers_changed_.notify_all();
  }
  connection->End(nullptr, RefusalStatus(reason));
}

GrpcConnection::OutgoingPtr GrpcHub::Outgoing(Frame frame) const {
  return std::make_unique<OutgoingFrame>(std::move(frame), unsent_);
}

void GrpcHub::Establish(PeerId peer, Link& link,
                        const ConnectionPtr& connection, Frames first) {
  for (GrpcConnection::OutgoingPtr& frame : link.waiting) {
    first.push_back(std::move(frame));
  }
  link.waiting.clear();
  if (link.traffic == nullptr) {
    link.traffic = std::make_shared<TrafficCounters>();
  }
  link.state = Link::State::kUp;
  link.connection = connection;
  connection->set_peer(peer);
  connection->Adopt(std::move(first), link.traffic);

  Live& live = live_[connection.get()];
  live.abort_at = absl::InfiniteFuture();
  if (live.stranger) --strangers_;
  live.stranger = false;
  events_.Push({GrpcEvent::Kind::kConnected, peer, connection, {}, {}});
}

void GrpcHub::GiveUp(PeerId peer, Link& link, absl::Status failure,
                     Frames& dropped) {
  StopConnecting(link, dropped);
  link.state = Link::State::kEnded;
  failure = WithPeer(peer, link.address, failure);
  events_.Push({GrpcEvent::Kind::kDisconnected,
                peer,
                nullptr,
                {},
                std::move(failure),
                link.disconnects});
}

void GrpcHub::OnClosed(const ConnectionPtr& connection) {
  Frames dropped;
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = live_.find(connection.get());
  NEREUS_CHECK(found != live_.end()) << connection->address();
  const Live live = std::move(found->second);
  live_.erase(found);
  if (live.stranger) --strangers_;

  if (connection->peer().has_value()) {
    Link& link = links_[*connection->peer()];
    if (link.connection == connection) {
      link.state = Link::State::kEnded;
      events_.Push({GrpcEvent::Kind::kDisconnected,
                    *connection->peer(),
                    connection,
                    {},
                    {}});
    }
  } else if (live.dialled.has_value()) {
    Link& link = links_[*live.dialled];
    if (link.connection == connection) {
      AttemptClosed(*live.dialled, link, dropped);
    }
  }
  closed_.notify_all();
  timers_changed_.notify_all();
}

void GrpcHub::AttemptClosed(PeerId peer, Link& link, Frames& dropped) {
  absl::Status reason = link.connection->reason();
  if (link.connection->unimplemented()) {
    reason = absl::FailedPreconditionError(
        "something answers there that is not a Nereus data port");
  }
  if (reason.ok()) reason = absl::UnavailableError("it closed the connection");
  link.connection = nullptr;
  if (reason.code() != absl::StatusCode::kUnavailable) {
    return GiveUp(peer, link, std::move(reason), dropped);
  }
  link.last_error = std::string(reason.message());
  link.next_attempt = absl::Now() + link.backoff;
  link.backoff = std::min(link.backoff * 2, kBackoffMax);
}

void GrpcHub::RunTimers() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopped_) {
    Due due = CollectDue(absl::Now());
    if (due.attempts.empty() && due.aborts.empty() && due.dropped.empty()) {
      timers_changed_.wait_until(lock, absl::ToChronoTime(due.next));
      continue;
    }
    lock.unlock();
    for (const auto& [peer, address] : due.attempts) Attempt(peer, address);
    for (auto& [connection, reason] : due.aborts) {
      connection->Abort(std::move(reason));
    }
    due = Due();
    lock.lock();
  }
}

GrpcHub::Due GrpcHub::CollectDue(absl::Time now) {
  Due due;
  for (auto& [peer, link] : links_) {
    if (link.state == Link::State::kConnecting && link.connection == nullptr) {
      CollectAttempt(peer, link, now, due);
    }
  }
  for (auto& [key, live] : live_) {
    if (live.abort_at > now) {
      due.next = std::min(due.next, live.abort_at);
      continue;
    }
    live.abort_at = absl::InfiniteFuture();
    due.aborts.emplace_back(live.connection,
                            absl::UnavailableError(live.abort_reason));
  }
  return due;
}

void GrpcHub::CollectAttempt(PeerId peer, Link& link, absl::Time now,
                             Due& due) {
  if (now >= link.deadline) {
    GiveUp(peer, link,
           absl::UnavailableError(absl::StrCat(
               "not reached before the deadline: ", link.last_error)),
           due.dropped);
    return;
  }
  due.next = std::min(due.next, link.deadline);
  if (!identity_.has_value()) return;
  if (link.next_attempt > now) {
    due.next = std::min(due.next, link.next_attempt);
    return;
  }
  due.attempts.emplace_back(peer, link.address);
}

void GrpcHub::Attempt(PeerId peer, const std::string& address) {
  const ConnectionPtr connection = GrpcConnection::ToPeer(
      MakeFrameChannel(address), address, options_.undelivered_max,
      shared_from_this(), connections_);
  Hello hello;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Link& link = links_[peer];
    if (link.state != Link::State::kConnecting || link.connection != nullptr) {
      return;
    }
    link.connection = connection;
    Live& live = live_[connection.get()];
    live.connection = connection;
    live.dialled = peer;
    live.abort_at =
        std::min(absl::Now() + options_.handshake_timeout, link.deadline);
    live.abort_reason = "no answer in time";
    hello = *identity_;
  }
  hello.intended = peer;
  connection->Send(Outgoing(HelloFrame(hello)));
  connection->Start();
}

void GrpcHub::Shutdown(absl::Time deadline) {
  StopAccepting();
  unsent_->WaitForZero(deadline);
  StopTimers();
  CloseAll(deadline);

  // Connections and hub refer to each other until here.
  {
    absl::flat_hash_map<PeerId, Link> links;
    std::lock_guard<std::mutex> lock(mu_);
    links.swap(links_);
  }
  events_.Take(absl::ZeroDuration());
  // Their channels must not outlive the server (grpc_endpoint.h); a callback
  // may be about to drop the last reference to one.
  connections_->WaitForZero(absl::InfiniteFuture());
}

void GrpcHub::StopAccepting() {
  Frames dropped;
  std::lock_guard<std::mutex> lock(mu_);
  stopping_ = true;
  for (auto& [peer, link] : links_) {
    if (link.state == Link::State::kUp) continue;
    const bool hopeful =
        link.state == Link::State::kConnecting && !link.waiting.empty();
    if (!hopeful) StopConnecting(link, dropped);
  }
}

void GrpcHub::StopConnecting(Link& link, Frames& dropped) {
  link.state = Link::State::kIdle;
  link.connection = nullptr;
  for (GrpcConnection::OutgoingPtr& frame : link.waiting) {
    dropped.push_back(std::move(frame));
  }
  link.waiting.clear();
}

void GrpcHub::StopTimers() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
    timers_changed_.notify_all();
  }
  timers_.join();
}

void GrpcHub::CloseAll(absl::Time deadline) {
  Frames dropped;
  std::vector<ConnectionPtr> connections;
  PeerId self;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (identity_.has_value()) self = identity_->self;
    for (auto& [peer, link] : links_) {
      if (link.state != Link::State::kUp) StopConnecting(link, dropped);
    }
    for (auto& [key, live] : live_) connections.push_back(live.connection);
  }
  dropped.clear();
  const absl::Status reason = absl::CancelledError("this process shuts down");
  for (const ConnectionPtr& connection : connections) {
    if (connection->peer().has_value()) {
      connection->EndWhenSent(Outgoing(GoodbyeFrame(self)));
    } else {
      connection->Abort(reason);
    }
  }

  const auto all_closed = [this] { return live_.empty(); };
  std::unique_lock<std::mutex> lock(mu_);
  if (closed_.wait_until(lock, absl::ToChronoTime(deadline), all_closed)) {
    return;
  }
  lock.unlock();
  for (const ConnectionPtr& connection : connections) connection->Abort(reason);
  lock.lock();
  closed_.wait(lock, all_closed);
}

}  // namespace nereus
