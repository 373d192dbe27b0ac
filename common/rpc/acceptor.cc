#include "common/rpc/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/base/descriptor_limit.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Pause before the next attempt to accept when the system has no descriptor or
// memory for a connection. The connection still waits then, so poll would
// return at once, again and again.
constexpr int kPauseMs = 200;

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(
    const std::string& host, int port,
    std::function<void(Descriptor)> accepted) {
  Listener listener = NEREUS_TRY(Listen(host, port));
  Descriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) {
    return UnavailableError("eventfd: ", strerror(errno));
  }
  return std::unique_ptr<Acceptor>(
      new Acceptor(std::move(listener), std::move(stop), std::move(accepted)));
}

Acceptor::Acceptor(Listener listener, Descriptor stop,
                   std::function<void(Descriptor)> accepted)
    : listener_(std::move(listener)),
      stop_(std::move(stop)),
      accepted_(std::move(accepted)),
      thread_([this] { Run(); }) {}

Acceptor::~Acceptor() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void Acceptor::Run() {
  bool complained = false;
  bool pauses = false;
  for (;;) {
    pollfd watched[] = {{stop_.get(), POLLIN, 0},
                        {listener_.socket.get(), POLLIN, 0}};
    if (poll(watched, pauses ? 1 : 2, pauses ? kPauseMs : -1) < 0) continue;
    if (watched[0].revents != 0) return;
    Accepted next = Accept(listener_.socket);
    pauses = next.exhausted;
    // The kernel gives a new descriptor the lowest free number: a number near
    // the limit means that few descriptors are left.
    const bool is_reserve = next.socket.valid() &&
                            next.socket.get() >= DescriptorLimit() - kReserve;
    // Warns once, and again only after a connection has been accepted.
    if ((pauses || is_reserve) && !std::exchange(complained, true)) {
      NEREUS_LOG(Warning) << "control connections are turned away: all but "
                          << kReserve << " of this process's "
                          << DescriptorLimit()
                          << " file descriptors are in use (ulimit -n)";
    }
    if (!next.socket.valid() || is_reserve) continue;
    complained = false;
    accepted_(std::move(next.socket));
  }
}

}  // namespace nereus
