// Turn runs the event loop once, and everything else serves it. Poll calls Turn
// with a handler, Shutdown calls it without a handler.

#include "common/transport/socket/socket_transport.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Time for which the polling thread looks for frames before it sleeps, if it is
// likely to be woken soon.
constexpr absl::Duration kLookFor = absl::Microseconds(50);

// Longest wait of Shutdown between two looks at its deadline.
constexpr absl::Duration kShutdownTurn = absl::Milliseconds(50);

// Longest time between two frames on a connection that works.
constexpr absl::Duration kAliveInterval = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> SocketTransport::Start(
    const TransportOptions& options) {
  NEREUS_TRY(options.Validate());
  Listener listener = NEREUS_TRY(Listen(
      options.listen.empty() ? options.host : options.listen, options.port));
  std::unique_ptr<Poller> poller = NEREUS_TRY(Poller::Create());
  return std::unique_ptr<Transport>(
      new SocketTransport(options, std::move(listener), std::move(poller)));
}

SocketTransport::SocketTransport(const TransportOptions& options,
                                 Listener listener,
                                 std::unique_ptr<Poller> poller)
    : poller_(std::move(poller)),
      links_(options.handshake_timeout),
      connections_(*poller_),
      acceptor_(std::move(listener), options.handshakes_max, *poller_),
      dialler_([this] { poller_->Wake(); }),
      loop_(options, links_, connections_, delivery_, traffic_, dialler_) {}

SocketTransport::~SocketTransport() { Shutdown(absl::ZeroDuration()); }

void SocketTransport::SetRoster(const Hello& self, Roster roster) {
  links_.SetRoster(self, std::move(roster));
  // Moves payloads that are arriving to scratch: a frame that was announced in
  // the last epoch must not land in memory that the new epoch uses.
  connections_.ForEach(
      [](SocketConnection& connection) { connection.channel().LeavePlace(); });
}

void SocketTransport::Connect(PeerId peer, const std::string& address,
                              const ConnectLimits& limits) {
  dialler_.Forget(address);
  links_.Connect(peer, address, limits);
}

void SocketTransport::Disconnect(PeerId peer) {
  TakeInbox();  // Frames that were sent before this call are dropped, too.
  links_.Disconnect(peer);
}

void SocketTransport::Send(PeerId to, const Frame& frame) {
  NEREUS_CHECK(frame.payload.bytes() == frame.header.payload_bytes &&
               frame.payload.bytes() <= kFramePayloadBytesMax)
      << DescribeFrame(frame.header) << ": the payload has "
      << frame.payload.bytes() << " bytes";
  if (std::this_thread::get_id() == poll_thread_) {
    if (inbox_.used()) TakeInbox();  // Frames sent earlier go first.
    return links_.Send(to, frame);
  }
  if (inbox_.Push(to, frame)) Wake();
}

void SocketTransport::TakeInbox() {
  for (auto& [to, frame] : inbox_.Take()) links_.Send(to, std::move(frame));
}

void SocketTransport::MoveToThisThread() {
  poll_thread_ = std::this_thread::get_id();
}

void SocketTransport::Poll(absl::Duration timeout, FrameHandler& handler) {
  MoveToThisThread();
  delivery_.Begin(handler);
  loop_.Retry();
  Turn(timeout);
  delivery_.End();
}

void SocketTransport::Turn(absl::Duration timeout) {
  TakeInbox();
  for (const Dialler::LookedUp& answer : dialler_.Take()) {
    links_.OnLookedUp(answer.address, answer.result, SteadyNow());
  }
  loop_.WriteAll();
  const auto events = Wait(timeout);
  loop_.ReadMore();
  for (const epoll_event& event : events) {
    if (event.data.ptr == nullptr) continue;  // Wake: TakeInbox follows.
    if (event.data.ptr == &acceptor_) {
      const absl::Time now = SteadyNow();
      for (Accepted& accepted :
           acceptor_.AcceptSome(connections_.strangers(), now)) {
        loop_.OnAccepted(std::move(accepted), now);
      }
    } else {
      loop_.OnEvents(*static_cast<SocketConnection*>(event.data.ptr),
                     event.events);
    }
  }
  loop_.RunUnpolled();
  // Timers run after the frames that have arrived, because an awaited answer
  // may be among them.
  const absl::Time now = SteadyNow();
  acceptor_.Resume(now);
  loop_.RunTimers(now);
  EndSilent(now);
  TakeInbox();
  QueueAlive(now);
  loop_.WriteAll();
  connections_.Sweep();
}

absl::Span<const epoll_event> SocketTransport::Wait(absl::Duration timeout) {
  if (delivery_.delivered() || connections_.Has(Work::kRead)) {
    timeout = absl::ZeroDuration();
  }
  const absl::Time due = std::min(
      {links_.due_at(), connections_.due_at(), acceptor_.due_at(), alive_at_});
  if (due != absl::InfiniteFuture()) {
    timeout = std::min(timeout, due - SteadyNow());
  }
  // MaySleep comes last, because it makes the peers ring for their next frame,
  // which costs them a system call.
  const bool sleeps = timeout > absl::ZeroDuration() &&
                      !(poller_->slept_briefly() && LookForAWhile()) &&
                      loop_.MaySleep();
  return poller_->Wait(sleeps ? timeout : absl::ZeroDuration());
}

void SocketTransport::LimitSilence(absl::Duration silence_max) {
  silence_max_ = silence_max;
  const absl::Time now = SteadyNow();
  alive_at_ = silence_max == absl::InfiniteDuration() ? absl::InfiniteFuture()
                                                      : now + alive_interval();
  looked_at_ = std::min(looked_at_, now);
}

absl::Duration SocketTransport::alive_interval() const {
  return std::min(kAliveInterval, silence_max_ / 4);
}

void SocketTransport::SendAlive() {
  QueueAlive(SteadyNow());
  Flush();
}

void SocketTransport::QueueAlive(absl::Time now) {
  if (now < alive_at_) return;
  alive_at_ = now + alive_interval();
  connections_.ForEach([this](SocketConnection& connection) {
    if (!connection.is_open() || !connection.writer().empty()) return;
    Frame alive;
    alive.header.kind = FrameKind::kAlive;
    alive.header.sender = links_.self()->self;
    connection.Send(std::move(alive));
  });
}

// Runs after the frames that have arrived are read. A peer that sends is never
// silent for long, so time beyond two intervals is time in which this process
// did not poll.
void SocketTransport::EndSilent(absl::Time now) {
  const absl::Duration passed = now - looked_at_;
  if (passed < alive_interval()) return;
  looked_at_ = now;
  for (SocketConnection* const connection : connections_.All()) {
    if (!connection->is_open()) continue;
    const absl::Duration silence =
        connection->NoteSilence(std::min(passed, 2 * alive_interval()));
    if (silence >= silence_max_) loop_.EndSilent(*connection, silence);
  }
}

bool SocketTransport::LookForAWhile() const {
  const absl::Time until = SteadyNow() + kLookFor;
  do {
    if (loop_.HasUnpolledFrames() || poller_->IsReady()) return true;
    sched_yield();  // Other threads that have work on this core go first.
  } while (SteadyNow() < until);
  return false;
}

void SocketTransport::MeasureLinks() {
  int sockets = 0;
  int memories = 0;
  connections_.ForEach([&](SocketConnection& connection) {
    if (connection.is_open()) ++(connection.MeasureLink() ? sockets : memories);
  });
  traffic_.SetOpen(sockets, memories);
}

bool SocketTransport::HasUnsent() {
  bool has = links_.HasFramesToDial();
  connections_.ForEach([&has](SocketConnection& connection) {
    has = has || (connection.is_open() && !connection.writer().empty());
  });
  return has;
}

void SocketTransport::Shutdown(absl::Duration timeout) {
  if (std::exchange(shut_down_, true)) return;
  const absl::Time deadline = SteadyNow() + timeout;
  MoveToThisThread();
  TakeInbox();
  acceptor_.Close();
  links_.Stop();
  // The last frames are limited by the deadline alone.
  alive_at_ = looked_at_ = absl::InfiniteFuture();
  while (HasUnsent() && SteadyNow() < deadline) {
    Turn(std::min(kShutdownTurn, deadline - SteadyNow()));
  }
  CloseAll(deadline);
  inbox_.Close();
  TakeInbox();
  poll_thread_ = std::thread::id();
}

void SocketTransport::CloseAll(absl::Time deadline) {
  // Ends attempts at once. Says goodbye on open connections and waits until the
  // peer has closed its side, so that the kernel drops no byte that was sent.
  links_.Clear();
  for (SocketConnection* const connection : connections_.All()) {
    if (connection->is_open()) {
      connection->End(loop_.LastFrame(absl::OkStatus()));
    } else if (connection->state() != SocketConnection::State::kEnding) {
      connection->Close();
    }
  }
  do {
    Turn(std::min(kShutdownTurn, deadline - SteadyNow()));
  } while (!connections_.empty() && SteadyNow() < deadline);
  for (SocketConnection* const connection : connections_.All()) {
    connection->Close();
  }
  connections_.Sweep();
}

}  // namespace nereus
