#include "common/transport/socket/frame_pump.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/algorithm/container.h"

namespace nereus {

using State = SocketConnection::State;

void FramePump::OnEvents(SocketConnection& connection, uint32_t events) {
  if (connection.state() == State::kDialling) {
    return lifecycle_.OnDialled(connection);
  }
  // Reads after an error or a hang-up too: reading tells what has happened.
  if ((events & ~EPOLLOUT) != 0) Read(connection);
  if ((events & EPOLLOUT) != 0) connections_.Mark(connection, Work::kWrite);
}

void FramePump::Read(SocketConnection& connection) {
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
      const absl::Status greeted = lifecycle_.ReadPreamble(connection);
      if (!greeted.ok()) return lifecycle_.OnBroken(connection, greeted);
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
        lifecycle_.OnHandshakeFrame(connection, received.frame);
        break;
      case Kind::kRefused:
        return lifecycle_.Refuse(connection, received.status);
      case Kind::kBroken:
        return lifecycle_.OnBroken(connection, received.status);
    }
  }
}

void FramePump::Write(SocketConnection& connection) {
  if (connection.state() == State::kDialling) return;
  const absl::StatusOr<bool> all = connection.Write();
  const bool ends = connection.state() == State::kEnding;
  if (absl::IsInvalidArgument(all.status())) {
    return lifecycle_.OnBroken(connection, all.status());
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

void FramePump::WriteAll() {
  // Repeats, because an owner that gets its payload back may send the next.
  while (connections_.Has(Work::kWrite)) {
    connections_.ForMarked(Work::kWrite, [this](SocketConnection& connection) {
      Write(connection);
    });
  }
}

void FramePump::WriteEarly() {
  connections_.ForEach([this](SocketConnection& connection) {
    if (!connection.is_open() || connection.writer().empty()) return;
    connections_.Mark(connection, Work::kWrite);
    // The mark makes WriteAll look at this connection again, and see the error.
    connection.Write().IgnoreError();
  });
}

void FramePump::ReadMore() {
  connections_.ForMarked(
      Work::kRead, [this](SocketConnection& connection) { Read(connection); });
}

void FramePump::Retry() {
  connections_.ForMarked(Work::kRetry, [this](SocketConnection& connection) {
    if (connection.is_open()) Read(connection);
  });
}

void FramePump::RunUnpolled() {
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

bool FramePump::HasUnpolledFrames() const {
  const auto& unpolled = connections_.unpolled();
  return absl::c_any_of(unpolled, [](SocketConnection* connection) {
    return connection->is_open() && connection->reads() &&
           connection->channel().HasFrames();
  });
}

bool FramePump::MaySleep() {
  // Stops at the first channel with work. The channels before it have announced
  // a sleep; RunUnpolled takes that back.
  bool may_sleep = true;
  for (SocketConnection* const connection : connections_.unpolled()) {
    const bool reads = connection->is_open() && connection->reads();
    may_sleep = may_sleep && connection->channel().MaySleep(reads);
  }
  return may_sleep;
}

}  // namespace nereus
