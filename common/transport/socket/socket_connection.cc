#include "common/transport/socket/socket_connection.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "common/base/socket.h"

namespace nereus {

SocketConnection& ConnectionSet::Add(
    std::unique_ptr<SocketConnection> connection) {
  SocketConnection& added = *connection;
  connections_[&added] = std::move(connection);
  if (added.state() == SocketConnection::State::kStranger) {
    strangers_.push_back(&added);
  }
  added.Watch();
  return added;
}

ConnectionSet::List ConnectionSet::All() const {
  List all;
  for (const auto& [connection, owned] : connections_) {
    all.push_back(connection);
  }
  return all;
}

void ConnectionSet::Mark(SocketConnection& connection, Work work) {
  if (connection.is_closed() || connection.has(work)) return;
  // The flag keeps a connection from being in a list twice.
  connection.set_has(work, true);
  marked_[static_cast<size_t>(work)].push_back(&connection);
}

void ConnectionSet::OnOpen(SocketConnection& connection, bool is_polled) {
  std::erase(strangers_, &connection);
  if (!is_polled) unpolled_.push_back(&connection);
}

void ConnectionSet::OnClosed(SocketConnection& connection) {
  std::erase(strangers_, &connection);
  const auto found = connections_.find(&connection);
  closed_.push_back(std::move(found->second));
  connections_.erase(found);
}

void ConnectionSet::Due(absl::Time when) { due_at_ = std::min(due_at_, when); }

ConnectionSet::List ConnectionSet::TakeLate(absl::Time now) {
  // The connections of attempts have no deadline here, because PeerLinks ends
  // attempts.
  List late;
  if (now < due_at_) return late;
  due_at_ = absl::InfiniteFuture();
  for (auto& [connection, owned] : connections_) {
    if (connection->deadline() <= now) {
      late.push_back(connection);
    } else {
      Due(connection->deadline());
    }
  }
  return late;
}

void ConnectionSet::Sweep() {
  // First removes the connections that are destroyed here from all lists.
  if (closed_.empty()) return;
  const auto is_closed = [](const SocketConnection* connection) {
    return connection->is_closed();
  };
  for (List& marked : marked_) std::erase_if(marked, is_closed);
  std::erase_if(unpolled_, is_closed);
  // The owner of a released payload may call Send, which uses this set.
  std::exchange(closed_, {}).clear();
}

SocketConnection::SocketConnection(Descriptor socket, std::string address,
                                   State state, ConnectionSet& set,
                                   Delivery& delivery)
    : set_(set),
      socket_(std::move(socket)),
      address_(std::move(address)),
      state_(state),
      writer_([this](const FrameHeader& header) {
        if (counters_ != nullptr) counters_->CountSent(header);
      }),
      channel_(std::make_unique<SocketChannel>(
          socket_, /*is_connected=*/state != State::kDialling, delivery)) {}

void SocketConnection::Send(Frame frame) {
  writer_.Push(std::move(frame));
  set_.Mark(*this, Work::kWrite);
}

void SocketConnection::Close() {
  // Does not destroy this object, which ConnectionSet::Sweep does later: the
  // handler may call Close in the middle of a delivery from this connection.
  if (is_closed()) return;
  state_ = State::kClosed;
  set_.poller().Forget(socket_.get());
  socket_.Close();
  channel_->Stop();
  set_.OnClosed(*this);
}

void SocketConnection::Abort() {
  if (is_closed()) return;
  AbortOnClose(socket_);
  Close();
}

bool SocketConnection::HasEnded() const {
  // This only asks the kernel: bytes that have arrived stay unread.
  pollfd asked = {socket_.get(), POLLRDHUP, 0};
  return poll(&asked, 1, 0) > 0 && asked.revents != 0;
}

void SocketConnection::SetDeadline(absl::Time deadline) {
  deadline_ = deadline;
  set_.Due(deadline);
}

bool SocketConnection::reads() const {
  return state_ != State::kDialling && !has(Work::kRetry);
}

void SocketConnection::Watch() {
  if (is_closed()) return;
  set_.poller().Watch(socket_.get(), channel_->events(reads()), this);
}

absl::StatusOr<bool> SocketConnection::ReadPreamble(PreambleBytes& preamble) {
  // A stranger has the channel that the constructor made.
  const absl::StatusOr<bool> read =
      static_cast<SocketChannel&>(*channel_).ReadPreamble(preamble);
  if (read.ok() && *read) state_ = State::kIntroducing;
  return read;
}

void SocketConnection::Greet(const PreambleBytes& preamble, Frame hello,
                             std::unique_ptr<MemoryChannel> offered) {
  // The hello leaves in one system call with the preamble, so that the peer has
  // both at once.
  state_ = State::kGreeting;
  offered_ = std::move(offered);
  writer_.PushPreamble(preamble);
  Send(std::move(hello));
}

void SocketConnection::Open(PeerId peer, TrafficCounters& counters,
                            std::unique_ptr<MemoryChannel> memory) {
  state_ = State::kOpen;
  deadline_ = absl::InfiniteFuture();
  peer_ = peer;
  counters_ = &counters;
  offered_ = nullptr;
  set_.OnOpen(*this, /*is_polled=*/memory == nullptr);
  // Frees the buffers of the socket channel, which has read its last frame.
  if (memory != nullptr) channel_ = std::move(memory);
  channel_->Open(peer, counters);
}

void SocketConnection::End(Frame last) {
  // Drops the received frame that waits for the handler, if any, and all frames
  // behind it.
  state_ = State::kEnding;
  set_has(Work::kRetry, false);
  channel_->Stop();
  writer_.PushLast(std::move(last));
  set_.Mark(*this, Work::kWrite);
}

bool SocketConnection::MeasureLink() {
  const auto blocked = channel_->TakeBlockedTime();
  if (!blocked.has_value()) return false;
  counters_->AddBlocked(*blocked);
  return true;
}

absl::Duration SocketConnection::NoteSilence(absl::Duration passed) {
  const bool is_heard = channel_->TakeHeard() || channel_->HasFrames() ||
                        has(Work::kRead) || has(Work::kRetry);
  silent_for_ = is_heard ? absl::ZeroDuration() : silent_for_ + passed;
  return silent_for_;
}

}  // namespace nereus
