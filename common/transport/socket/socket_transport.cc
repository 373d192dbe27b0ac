#include "common/transport/socket/socket_transport.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/transport/handshake.h"

namespace nereus {
namespace {

constexpr int kEventsMax = 64;

// One that was woken so soon the last time looks for so long before it sleeps
// again: to sleep and to be woken takes as long. Whoever else has something to
// do on its core goes first.
constexpr absl::Duration kSoon = absl::Microseconds(200);
constexpr absl::Duration kLookFor = absl::Microseconds(50);

// Of epoll: for what is not a connection.
bool IsListener(const epoll_event& event, const Listener& listener) {
  return event.data.ptr == &listener;
}

// Calls `each` with those of `list`, which are taken out before: it may add
// others. Both keep their memory.
template <typename Pointer, typename Each>
void ForTaken(std::vector<Pointer>& list, std::vector<Pointer>& taken,
              Each each) {
  taken.swap(list);
  for (const Pointer& pointer : taken) each(*pointer);
  taken.clear();
}

int Milliseconds(absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) return 0;
  if (timeout > absl::Hours(24)) return -1;
  return static_cast<int>(std::ceil(absl::ToDoubleMilliseconds(timeout)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> SocketTransport::Start(
    const TransportOptions& options) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  NEREUS_ASSIGN_OR_RETURN(Listener listener,
                          Listen(options.host, options.port));
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  Descriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll.valid() || !wake.valid()) {
    return absl::UnavailableError(
        "no file descriptors are left for a data port");
  }
  return std::unique_ptr<Transport>(new SocketTransport(
      options, std::move(listener), std::move(epoll), std::move(wake)));
}

SocketTransport::SocketTransport(const TransportOptions& options,
                                 Listener listener, Descriptor epoll,
                                 Descriptor wake)
    : options_(options),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)) {
  const auto watch = [this](int fd, void* data) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.ptr = data;
    NEREUS_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0)
        << "epoll: " << errno;
  };
  watch(listener_.socket.get(), &listener_);
  watch(wake_.get(), nullptr);
  resolver_.emplace([this] { Wake(); });
}

SocketTransport::~SocketTransport() { Shutdown(absl::ZeroDuration()); }

void SocketTransport::SetRoster(const Hello& self, Roster roster) {
  identity_ = self;
  roster_ = std::move(roster);
  due_ = absl::InfinitePast();
  // What was announced in the last epoch must not go on landing in the places
  // of this one.
  for (auto& [key, connection] : connections_) {
    if (!connection->landed ||
        connection->landing.kind != Landing::Kind::kPlace) {
      continue;
    }
    connection->scratch = TakeScratch();
    connection->reader.LandElsewhere(connection->scratch.data());
    connection->landing = Landing::Scratch();
  }
}

void SocketTransport::Send(PeerId to, const Frame& frame) {
  NEREUS_CHECK(frame.payload.bytes() == frame.header.payload_bytes &&
               frame.payload.bytes() <= kFramePayloadBytesMax)
      << DescribeFrame(frame.header) << ": the payload has "
      << frame.payload.bytes() << " bytes";
  if (std::this_thread::get_id() == poll_thread_) {
    if (inbox_used_) TakeInbox();  // What came first goes first.
    return SendHere(to, frame);
  }
  {
    std::lock_guard<std::mutex> lock(inbox_mu_);
    if (inbox_closed_) return;
    inbox_.emplace_back(to, frame);
    inbox_used_ = true;
  }
  Wake();
}

void SocketTransport::SendHere(PeerId to, Frame frame) {
  if (stopping_) return;
  Link& link = links_[to];
  if (link.state != Link::State::kUp) {
    link.waiting.push_back(std::move(frame));
    return;
  }
  link.connection->writer.Push(std::move(frame));
  MarkDirty(*link.connection);
}

void SocketTransport::TakeInbox() {
  std::vector<std::pair<PeerId, Frame>> frames;
  {
    std::lock_guard<std::mutex> lock(inbox_mu_);
    frames.swap(inbox_);
    inbox_used_ = false;
  }
  for (auto& [to, frame] : frames) SendHere(to, std::move(frame));
}

void SocketTransport::Wake() {
  if (woken_.exchange(true)) return;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

std::vector<TrafficCount> SocketTransport::traffic() const {
  std::lock_guard<std::mutex> lock(traffic_mu_);
  std::vector<TrafficCount> counts;
  for (const auto& [peer, counters] : traffic_) {
    counts.push_back({peer, counters->sent, counters->received});
  }
  return counts;
}

void SocketTransport::MoveToThisThread() {
  poll_thread_ = std::this_thread::get_id();
}

void SocketTransport::Poll(absl::Duration timeout, FrameHandler& handler) {
  MoveToThisThread();
  handler_ = &handler;
  delivered_ = false;
  ++deliveries_;  // Whatever the owner has done since.
  RetryWaiting();
  Turn(delivered_ ? absl::ZeroDuration() : timeout);
  handler_ = nullptr;
}

void SocketTransport::Turn(absl::Duration timeout) {
  TakeInbox();
  TakeAnswers();
  FlushDirty();
  if (delivered_ || !again_.empty()) timeout = absl::ZeroDuration();
  if (due_ != absl::InfiniteFuture()) {
    timeout = std::min(timeout, due_ - absl::Now());
  }
  const bool stays = timeout > absl::ZeroDuration() &&
                     !(last_sleep_ < kSoon && LookForAWhile()) && MaySleep();
  if (!stays) timeout = absl::ZeroDuration();
  const absl::Time from = stays ? absl::Now() : absl::InfinitePast();
  std::array<epoll_event, kEventsMax> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsMax,
                               Milliseconds(timeout));
  if (stays) last_sleep_ = absl::Now() - from;
  ForTaken(again_, again_taken_, [this](Connection& connection) {
    connection.again = false;
    Receive(connection);
  });
  for (int i = 0; i < count; ++i) {
    if (IsListener(events[i], listener_)) {
      AcceptAll();
    } else if (events[i].data.ptr == nullptr) {
      // In this order: one who wakes in between writes nothing, and what it has
      // for this thread is taken after this; in the other one the read would
      // take what it has written, and leave woken_ set for ever.
      uint64_t times = 0;
      (void)!read(wake_.get(), &times, sizeof(times));
      woken_ = false;
    } else {
      auto* connection = static_cast<Connection*>(events[i].data.ptr);
      if (connection->state == Connection::State::kDialling) {
        OnDialled(*connection);
        continue;
      }
      if ((events[i].events & ~EPOLLOUT) != 0) Receive(*connection);
      if ((events[i].events & EPOLLOUT) != 0) MarkDirty(*connection);
    }
  }
  RunShared();
  // After what has come in: it may have been in time.
  RunTimers();
  TakeInbox();
  FlushDirty();
  // Payloads that are dropped may be answered by Send.
  std::exchange(gone_, {}).clear();
}

bool SocketTransport::LookForAWhile() {
  const absl::Time until = absl::Now() + kLookFor;
  const auto has_frames = [](const ConnectionPtr& connection) {
    return connection->state == Connection::State::kOpen &&
           !connection->waits && !connection->shared->reader.empty();
  };
  do {
    epoll_event event;
    if (woken_ || std::any_of(shared_.begin(), shared_.end(), has_frames) ||
        epoll_wait(epoll_.get(), &event, 1, 0) > 0) {
      return true;
    }
    sched_yield();
  } while (absl::Now() < until);
  return false;
}

void SocketTransport::MarkDirty(Connection& connection) {
  if (connection.state == Connection::State::kGone ||
      std::exchange(connection.dirty, true)) {
    return;
  }
  dirty_.push_back(connections_.at(&connection));
}

void SocketTransport::FlushDirty() {
  // Whoever has a payload back may send the next one.
  while (!dirty_.empty()) {
    ForTaken(dirty_, dirty_taken_, [this](Connection& connection) {
      connection.dirty = false;
      Flush(connection);
    });
  }
}

void SocketTransport::Flush(Connection& connection) {
  if (connection.state == Connection::State::kGone ||
      connection.state == Connection::State::kDialling) {
    return;
  }
  if (connection.shared != nullptr) return FlushShared(connection);
  const absl::StatusOr<bool> all =
      connection.writer.Write(connection.socket.get());
  if (!all.ok()) {
    // What has come in before, and the peer's reason, is still to be read.
    connection.writer.Fail();
    if (connection.state == Connection::State::kEnding) {
      return Close(connection);
    }
    return Watch(connection, connection.waits ? 0U : uint32_t{EPOLLIN});
  }
  if (*all && connection.state == Connection::State::kEnding &&
      !std::exchange(connection.shut, true)) {
    shutdown(connection.socket.get(), SHUT_WR);
  }
  const uint32_t reading = connection.waits ? 0U : uint32_t{EPOLLIN};
  Watch(connection, *all ? reading : (reading | EPOLLOUT));
}

void SocketTransport::Watch(Connection& connection, uint32_t events) {
  if (connection.watched == events) return;
  epoll_event event = {};
  event.events = events;
  event.data.ptr = &connection;
  // One that is not watched does not hear of its end either.
  const int operation = connection.watched == 0 ? EPOLL_CTL_ADD
                        : events == 0           ? EPOLL_CTL_DEL
                                                : EPOLL_CTL_MOD;
  NEREUS_CHECK(
      epoll_ctl(epoll_.get(), operation, connection.socket.get(), &event) == 0)
      << connection.address << ": epoll: " << errno;
  connection.watched = events;
}

void SocketTransport::Close(Connection& connection) {
  if (connection.state == Connection::State::kGone) return;
  if (std::exchange(connection.counted, false)) --strangers_;
  connection.state = Connection::State::kGone;
  connection.watched = 0;
  connection.socket.Close();
  GiveScratchBack(connection);
  const auto found = connections_.find(&connection);
  gone_.push_back(std::move(found->second));
  connections_.erase(found);
}

bool SocketTransport::HasUnsent() const {
  const bool hopeful =
      std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
        return entry.second.state == Link::State::kConnecting &&
               !entry.second.waiting.empty();
      });
  return hopeful ||
         std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& entry) {
                       return entry.second->state == Connection::State::kOpen &&
                              !entry.second->writer.empty();
                     });
}

void SocketTransport::Shutdown(absl::Duration timeout) {
  if (std::exchange(shut_down_, true)) return;
  const absl::Time deadline = absl::Now() + timeout;
  MoveToThisThread();
  TakeInbox();
  stopping_ = true;
  listener_.socket.Close();
  for (auto& [peer, link] : links_) {
    const bool hopeful =
        link.state == Link::State::kConnecting && !link.waiting.empty();
    if (link.state != Link::State::kUp && !hopeful) StopConnecting(link);
  }
  while (HasUnsent() && absl::Now() < deadline) {
    Turn(std::min(absl::Milliseconds(50), deadline - absl::Now()));
  }
  CloseAll(deadline);
  {
    std::lock_guard<std::mutex> lock(inbox_mu_);
    inbox_closed_ = true;
  }
  TakeInbox();
  poll_thread_ = std::thread::id();
}

void SocketTransport::CloseAll(absl::Time deadline) {
  const PeerId self = identity_.has_value() ? identity_->self : PeerId();
  for (auto& [peer, link] : links_) {
    if (link.state != Link::State::kUp) StopConnecting(link);
  }
  std::vector<ConnectionPtr> all;
  for (const auto& [key, connection] : connections_) all.push_back(connection);
  for (const ConnectionPtr& connection : all) {
    if (connection->state != Connection::State::kOpen) {
      if (connection->state != Connection::State::kEnding) Close(*connection);
      continue;
    }
    BeginEnding(*connection, GoodbyeFrame(self));
  }
  do {
    Turn(std::min(absl::Milliseconds(50), deadline - absl::Now()));
  } while (!connections_.empty() && absl::Now() < deadline);
  all.clear();
  links_.clear();
  for (const auto& [key, connection] : connections_) all.push_back(connection);
  for (const ConnectionPtr& connection : all) Close(*connection);
  gone_.clear();
}

}  // namespace nereus
