// Events, reading and writing come first. Then the functions stand in the order
// of a connection's life: Dial and OnDialled
// run on the side that dials, OnAccepted and ReadPreamble on the side that
// accepts. OnHandshakeFrame calls Admit (accepting side) or Complete (dialling
// side), both of which end in Open. The functions after Open end connections;
// RunTimers also begins attempts.

#include "common/transport/socket/event_loop.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/transport/handshake.h"

namespace nereus {

using State = SocketConnection::State;

EventLoop::EventLoop(const TransportOptions& options, PeerLinks& links,
                     ConnectionSet& connections, Delivery& delivery,
                     TrafficTable& traffic, Dialler& dialler)
    : options_(options),
      links_(links),
      connections_(connections),
      delivery_(delivery),
      traffic_(traffic),
      dialler_(dialler) {}

void EventLoop::OnEvents(SocketConnection& connection, uint32_t events) {
  if (connection.state() == State::kDialling) {
    return OnDialled(connection);
  }
  // Reads after an error or a hang-up too: reading tells what has happened.
  if ((events & ~EPOLLOUT) != 0) Read(connection);
  if ((events & EPOLLOUT) != 0) connections_.Mark(connection, Work::kWrite);
}

void EventLoop::Read(SocketConnection& connection) {
  using Kind = Channel::Received::Kind;
  while (!connection.is_closed() && connection.reads()) {
    if (connection.state() == State::kEnding) {
      // Reads and drops the bytes that arrive. Otherwise the kernel would send
      // a reset when the socket is closed, and the peer might lose the last
      // frame.
      const auto drained = FrameReader::Drain(connection.socket().get());
      if (!drained.ok() || *drained == FrameReader::Next::kEnd) {
        connection.Close();
      }
      return;
    }
    if (connection.state() == State::kStranger) {
      const absl::Status greeted = ReadPreamble(connection);
      if (!greeted.ok()) return OnBroken(connection, greeted);
      if (connection.state() == State::kStranger) return;
    }
    const Channel::Received received = connection.channel().Receive();
    switch (received.kind) {
      case Kind::kNothing:
        return connection.Watch();
      case Kind::kTurnOver:
        return connections_.Mark(connection, Work::kRead);
      case Kind::kWaits:
        connections_.Mark(connection, Work::kRetry);
        return connection.Watch();
      case Kind::kHandshake:
        // May open the connection, and give it another channel: reads on.
        OnHandshakeFrame(connection, received.frame);
        break;
      case Kind::kRefused:
        return Refuse(connection, received.status);
      case Kind::kBroken:
        return OnBroken(connection, received.status);
    }
  }
}

void EventLoop::Write(SocketConnection& connection) {
  if (connection.state() == State::kDialling) return;
  const absl::StatusOr<bool> all = connection.Write();
  const bool ends = connection.state() == State::kEnding;
  if (absl::IsInvalidArgument(all.status())) {
    return OnBroken(connection, all.status());
  }
  if (!all.ok()) {
    // Does not close yet: frames that the peer sent before, and perhaps its
    // reason, must still be read.
    connection.writer().Fail();
    if (ends) return connection.Close();
  } else if (*all && ends) {
    // Closes at once if no event will tell when the peer has read all.
    if (connection.channel().events(/*reads=*/true) == 0) {
      return connection.Close();
    }
    shutdown(connection.socket().get(), SHUT_WR);
  }
  connection.Watch();
}

void EventLoop::WriteAll() {
  // Repeats, because an owner that gets its payload back may send the next.
  while (connections_.Has(Work::kWrite)) {
    connections_.ForMarked(Work::kWrite, [this](SocketConnection& connection) {
      Write(connection);
    });
  }
}

void EventLoop::WriteEarly() {
  connections_.ForEach([this](SocketConnection& connection) {
    if (!connection.is_open() || connection.writer().empty()) return;
    connections_.Mark(connection, Work::kWrite);
    // The mark makes WriteAll look at this connection again, and see the error.
    connection.Write().IgnoreError();
  });
}

void EventLoop::ReadMore() {
  connections_.ForMarked(
      Work::kRead, [this](SocketConnection& connection) { Read(connection); });
}

void EventLoop::Retry() {
  connections_.ForMarked(Work::kRetry, [this](SocketConnection& connection) {
    if (connection.is_open()) Read(connection);
  });
}

void EventLoop::RunUnpolled() {
  // Goes by index, because the handler may open connections meanwhile.
  const size_t count = connections_.unpolled().size();
  for (size_t i = 0; i < count; ++i) {
    SocketConnection& connection = *connections_.unpolled()[i];
    if (connection.is_closed()) continue;
    Channel& channel = connection.channel();
    // Until MaySleep, the peer need not ring: each RunUnpolled looks for
    // frames.
    const bool blocked = channel.Awake();
    if (connection.is_open() && connection.reads() && channel.HasWork()) {
      Read(connection);
    }
    if (blocked) connections_.Mark(connection, Work::kWrite);
  }
}

bool EventLoop::HasUnpolledFrames() const {
  const auto& unpolled = connections_.unpolled();
  return absl::c_any_of(unpolled, [](SocketConnection* connection) {
    return connection->is_open() && connection->reads() &&
           connection->channel().HasFrames();
  });
}

bool EventLoop::MaySleep() {
  // Stops at the first channel with work. The channels before it have announced
  // a sleep; RunUnpolled takes that back.
  bool may_sleep = true;
  for (SocketConnection* const connection : connections_.unpolled()) {
    const bool reads = connection->is_open() && connection->reads();
    may_sleep = may_sleep && connection->channel().MaySleep(reads);
  }
  return may_sleep;
}

void EventLoop::Dial(const PeerLinks::Attempt& attempt, absl::Time now) {
  auto dialled = dialler_.Dial(attempt.address);
  if (!dialled.ok()) {
    return links_.OnNoSocket(attempt.peer, dialled.status(), now);
  }
  if (!dialled->socket.valid()) return links_.OnLookingUp(attempt.peer);
  SocketConnection& connection =
      connections_.Add(std::make_unique<SocketConnection>(
          std::move(dialled->socket), attempt.address, State::kDialling,
          connections_, delivery_));
  connection.set_peer(attempt.peer);
  links_.OnDialling(attempt.peer, &connection, dialled->has_more_addresses,
                    now);
}

void EventLoop::OnDialled(SocketConnection& connection) {
  const absl::Status result = ConnectResult(connection.socket());
  if (!result.ok()) return FailAttempt(connection, result);
  auto greeting = links_.Greet(connection.peer());
  if (!greeting.ok()) return FailAttempt(connection, greeting.status());
  // If no memory can be made, the frames go through the socket.
  std::unique_ptr<MemoryChannel> offered;
  if (options_.shared_memory && IsOnSameHost(connection.socket())) {
    auto memory = MemoryChannel::Create(connection.socket(), delivery_);
    if (memory.ok()) {
      offered = *std::move(memory);
      greeting->hello.shared_memory = offered->offer();
    } else {
      NEREUS_LOG(Debug) << connection.address() << ": " << memory.status();
    }
  }
  connection.Greet(EncodePreamble(greeting->preamble),
                   HelloFrame(greeting->hello), std::move(offered));
}

void EventLoop::OnAccepted(Accepted accepted, absl::Time now) {
  connections_
      .Add(std::make_unique<SocketConnection>(
          std::move(accepted.socket), std::move(accepted.address),
          State::kStranger, connections_, delivery_))
      .SetDeadline(now + options_.handshake_timeout);
}

absl::Status EventLoop::ReadPreamble(SocketConnection& connection) {
  PreambleBytes bytes;
  const bool read = NEREUS_TRY(connection.ReadPreamble(bytes));
  if (!read) return absl::OkStatus();
  const Preamble preamble = NEREUS_TRY(DecodePreamble(bytes));
  return links_.CheckPreamble(preamble);
}

void EventLoop::OnHandshakeFrame(SocketConnection& connection,
                                 const Frame& frame) {
  // A stranger has nothing to refuse yet. If its first frame is a refusal,
  // Admit reports that as a bad hello.
  const bool is_introducing = connection.state() == State::kIntroducing;
  if (frame.header.kind == FrameKind::kRefusal && !is_introducing) {
    return OnRefused(connection, RefusalStatus(ReadRefusal(frame)));
  }
  const absl::Status status =
      is_introducing ? Admit(connection, frame) : Complete(connection, frame);
  if (!status.ok()) Refuse(connection, status);
}

absl::Status EventLoop::Admit(SocketConnection& connection,
                              const Frame& hello) {
  const Hello theirs = NEREUS_TRY(ReadHello(hello));
  NEREUS_TRY(links_.Admit(theirs, connection.address()));
  Hello ours = *links_.self();
  ours.intended = theirs.self;
  std::unique_ptr<MemoryChannel> memory = TakeOffer(connection, theirs);
  if (memory != nullptr) ours.shared_memory = theirs.shared_memory;
  connection.Send(HelloFrame(ours));
  if (memory != nullptr) {
    // Writes this side's hello into the socket now: after Open, all frames go
    // through the memory. The bytes fit, because nothing was sent before.
    const absl::StatusOr<bool> all = connection.Write();
    if (!all.ok() || !*all) {
      return UnavailableError(
          NotReadyReason("the answer did not fit into the socket"));
    }
  }
  Open(connection, theirs.self, std::move(memory));
  return absl::OkStatus();
}

std::unique_ptr<MemoryChannel> EventLoop::TakeOffer(
    const SocketConnection& connection, const Hello& theirs) const {
  if (!options_.shared_memory || !theirs.shared_memory.has_value()) {
    return nullptr;
  }
  auto memory = MemoryChannel::Accept(*theirs.shared_memory,
                                      connection.socket(), delivery_);
  if (memory.ok()) return *std::move(memory);
  // Logs why, because an operator can mend it. For example, two containers on
  // one host often do not see each other's processes.
  NEREUS_LOG(Info) << PeerName(theirs.self) << " (" << connection.address()
                   << ") is reached by TCP alone, not by shared memory: "
                   << memory.status().message();
  return nullptr;
}

absl::Status EventLoop::Complete(SocketConnection& connection,
                                 const Frame& hello) {
  const Hello theirs = NEREUS_TRY(ReadHello(hello));
  NEREUS_TRY(links_.CheckAnswer(connection.peer(), theirs));
  std::unique_ptr<MemoryChannel> memory =
      NEREUS_TRY(TakeAnswer(connection, theirs));
  Open(connection, connection.peer(), std::move(memory));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MemoryChannel>> EventLoop::TakeAnswer(
    SocketConnection& connection, const Hello& theirs) {
  std::unique_ptr<MemoryChannel> offered = connection.TakeOffered();
  if (!theirs.shared_memory.has_value()) return nullptr;
  if (offered == nullptr || offered->offer() != *theirs.shared_memory) {
    return FailedPreconditionError(
        "handshake: the peer has taken shared memory that was not offered");
  }
  // If the writer still has a part of this side's hello, the peer cannot have
  // read the offer that it accepts. And that part must not go into the memory.
  if (!connection.writer().empty()) {
    return FailedPreconditionError(
        "handshake: the peer answered before it was greeted");
  }
  return offered;
}

void EventLoop::Open(SocketConnection& connection, PeerId peer,
                     std::unique_ptr<MemoryChannel> memory) {
  NEREUS_LOG(Debug) << "connected to " << PeerName(peer) << " ("
                    << connection.address()
                    << (memory != nullptr ? ", by shared memory)" : ")");
  connection.Open(peer, traffic_.CountersOf(peer), std::move(memory));
  // Queues the frames that waited for the link before the handler sends more.
  links_.OnOpen(peer, &connection);
  connections_.Mark(connection, Work::kWrite);
  delivery_.Connected(peer);
}

void EventLoop::OnBroken(SocketConnection& connection,
                         const absl::Status& reason) {
  const bool is_nonsense = absl::IsInvalidArgument(reason);
  switch (connection.state()) {
    case State::kStranger:
      // The handler does not know of a stranger, so nothing is reported.
      if (!is_nonsense) return connection.Close();
      return Refuse(connection, reason);
    case State::kIntroducing:
      return Refuse(connection, reason);
    case State::kDialling:
    case State::kGreeting:
      return FailAttempt(
          connection,
          is_nonsense ? FailedPreconditionError(
                            "what listens there is not a Nereus data port: ",
                            reason.message())
                      : reason);
    case State::kOpen:
      if (is_nonsense) return Refuse(connection, reason);
      connection.Close();
      return Lose(connection, reason);
    case State::kEnding:
    case State::kClosed:
      return connection.Close();
  }
}

void EventLoop::Refuse(SocketConnection& connection,
                       const absl::Status& reason) {
  const State state = connection.state();
  if (state == State::kStranger || state == State::kIntroducing) {
    // A peer that came too early or went away (kUnavailable) is normal: logs it
    // at level debug. Any other refusal needs an operator's attention.
    if (absl::IsUnavailable(reason)) {
      NEREUS_LOG(Debug) << "refused a connection from " << connection.address()
                        << ": " << reason.message();
    } else {
      NoteStranger(connection, reason);
    }
  } else if (state == State::kOpen) {
    traffic_.CountRefusedPeer();
    NEREUS_LOG(Warning, {LogEvent::kConnection})
        << "ending the connection to " << PeerName(connection.peer()) << " ("
        << connection.address() << "): " << reason.message();
  }
  EndWith(connection, reason);
}

void EventLoop::EndSilent(SocketConnection& connection,
                          absl::Duration silence) {
  EndWith(connection,
          UnavailableError("nothing has arrived for ",
                           absl::FormatDuration(
                               absl::Trunc(silence, absl::Milliseconds(100))),
                           ": the network lets nothing through, or the process "
                           "at the other end stands still"));
}

void EventLoop::EndWith(SocketConnection& connection,
                        const absl::Status& reason) {
  // Leaves the socket open until the deadline, or until the peer closes its
  // side, which it does after it has read the reason.
  const State state = connection.state();
  connection.SetDeadline(SteadyNow() + options_.closing_timeout);
  connection.End(LastFrame(reason));
  connection.writer().DropWaiting();
  if (state == State::kOpen) {
    Lose(connection, reason);
  } else if (state == State::kGreeting) {
    FailAttempt(connection, reason);
  }
}

void EventLoop::NoteStranger(const SocketConnection& connection,
                             const absl::Status& reason) {
  traffic_.CountRefusedStranger();
  const std::string why(reason.message());
  if (const auto lasts = refusals_.Note(why, SteadyNow())) {
    NEREUS_LOG(Warning, {LogEvent::kRefused})
        << "refused a connection from " << connection.address() << ": " << why
        << LastsText(*lasts);
  }
}

Frame EventLoop::LastFrame(const absl::Status& reason) const {
  const PeerId self =
      links_.self().has_value() ? links_.self()->self : PeerId();
  return RefusalFrame(self, reason.message());
}

void EventLoop::OnRefused(SocketConnection& connection,
                          const absl::Status& reason) {
  if (connection.state() == State::kGreeting) {
    // An OK reason is a goodbye: the peer shuts down. It may be started again,
    // so the link tries again.
    return FailAttempt(connection, reason.ok()
                                       ? UnavailableError("the peer has ended")
                                       : reason);
  }
  connection.Close();
  Lose(connection, reason);
}

void EventLoop::FailAttempt(SocketConnection& connection,
                            const absl::Status& reason) {
  // A connection that this side refuses (kEnding) stays open until its last
  // frame is sent.
  if (connection.state() != State::kEnding) connection.Close();
  const auto loss = links_.OnAttemptFailed(connection.peer(), &connection,
                                           reason, SteadyNow());
  if (loss.has_value()) delivery_.Disconnected(loss->peer, loss->reason);
}

void EventLoop::Lose(SocketConnection& connection, const absl::Status& reason) {
  const PeerId peer = connection.peer();
  if (links_.OnLost(peer, &connection)) delivery_.Disconnected(peer, reason);
}

void EventLoop::RunTimers(absl::Time now) {
  for (SocketConnection* const connection : connections_.TakeLate(now)) {
    if (connection->state() != State::kEnding) {
      NEREUS_LOG(Debug) << "closed the connection from "
                        << connection->address() << ": no hello arrived within "
                        << absl::FormatDuration(options_.handshake_timeout);
    }
    connection->Close();
  }
  // Takes one loss at a time, because the handler may connect or disconnect
  // other links.
  while (const auto loss = links_.NextLoss(now)) {
    delivery_.Disconnected(loss->peer, loss->reason);
  }
  for (const auto& attempt : links_.TakeAttempts(now)) Dial(attempt, now);
}

}  // namespace nereus
