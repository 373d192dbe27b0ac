#include "common/transport/socket/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

constexpr absl::Duration kBriefSleep = absl::Microseconds(200);

// Rounds up, so that Wait does not return just before a deadline.
int Milliseconds(absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) return 0;
  if (timeout > absl::Hours(24)) return -1;
  return static_cast<int>(std::ceil(absl::ToDoubleMilliseconds(timeout)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Poller>> Poller::Create() {
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  Descriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll.valid() || !wake.valid()) {
    return UnavailableError("no file descriptors are left for a data port");
  }
  return std::unique_ptr<Poller>(new Poller(std::move(epoll), std::move(wake)));
}

Poller::Poller(Descriptor epoll, Descriptor wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)) {
  Watch(wake_.get(), EPOLLIN, nullptr);
}

void Poller::Watch(int fd, uint32_t events, void* owner) {
  const auto index = static_cast<size_t>(fd);
  if (index >= watched_.size()) watched_.resize(index + 1);
  const uint32_t before = std::exchange(watched_[index], events);
  if (before == events) return;
  epoll_event event = {};
  event.events = events;
  event.data.ptr = owner;
  const int operation = before == 0   ? EPOLL_CTL_ADD
                        : events == 0 ? EPOLL_CTL_DEL
                                      : EPOLL_CTL_MOD;
  NEREUS_CHECK(epoll_ctl(epoll_.get(), operation, fd, &event) == 0)
      << "epoll: " << errno;
}

void Poller::Forget(int fd) {
  const auto index = static_cast<size_t>(fd);
  if (index < watched_.size()) watched_[index] = 0;
}

void Poller::Wake() {
  if (woken_.exchange(true)) return;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

absl::Span<const epoll_event> Poller::Wait(absl::Duration timeout) {
  const bool sleeps = timeout > absl::ZeroDuration();
  const absl::Time from = sleeps ? SteadyNow() : absl::InfinitePast();
  const int count =
      epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()),
                 Milliseconds(timeout));
  if (sleeps) last_sleep_ = SteadyNow() - from;
  const size_t found = count > 0 ? static_cast<size_t>(count) : 0;
  for (size_t i = 0; i < found; ++i) {
    if (events_[i].data.ptr != nullptr) continue;
    // Reads first, and clears the flag then. A thread that calls Wake in
    // between writes nothing, but the caller of Wait looks for that thread's
    // work after this. In the opposite order, the read could take what that
    // thread has written, and woken_ would stay set for ever.
    uint64_t times = 0;
    (void)!read(wake_.get(), &times, sizeof(times));
    woken_ = false;
  }
  return absl::MakeConstSpan(events_.data(), found);
}

bool Poller::slept_briefly() const { return last_sleep_ < kBriefSleep; }

bool Poller::IsReady() const {
  epoll_event event;
  return woken_ || epoll_wait(epoll_.get(), &event, 1, 0) > 0;
}

}  // namespace nereus
