#include "common/transport/socket/socket_connection.h"

#include <poll.h>

#include <utility>

#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/transport/socket/connection_set.h"

namespace nereus {

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
