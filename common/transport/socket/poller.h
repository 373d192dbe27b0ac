#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {

// Waits until a watched descriptor is ready, or until another thread calls
// Wake. Owns the epoll descriptor and the descriptor that Wake writes to.
//
// Wake is thread-safe; all else belongs to the thread that polls.
class Poller {
 public:
  // Errors: kUnavailable, the process has no descriptors left.
  static absl::StatusOr<std::unique_ptr<Poller>> Create();

  // Watches `fd` for `events` (EPOLLIN, EPOLLOUT). Wait returns such events
  // together with `owner`. If `events` is 0, stops watching: then Wait does not
  // even report the end of a connection. Costs no system call if the events do
  // not change. REQUIRES: no other owner watches `fd`; with the same events,
  // the new owner would not replace the old one.
  void Watch(int fd, uint32_t events, void* owner);

  // Drops the record of `fd`. The caller closes `fd` right after this call, and
  // then epoll drops it by itself.
  void Forget(int fd);

  // Makes the Wait under way return at once; if there is none, the next one.
  void Wake();

  // Waits until there are events, but no longer than `timeout`, rounded up to
  // whole milliseconds. A timeout above 24 h is no limit. Returns the events,
  // which are valid until the next call. In each event, data.ptr is the owner;
  // null for a Wake.
  absl::Span<const epoll_event> Wait(absl::Duration timeout);

  // True if the last Wait with a timeout above 0 took less than 200 us. The
  // next Wait is likely to be as short; then falling asleep and waking up would
  // take about as long as the wait itself.
  bool slept_briefly() const;

  // True if Wait would return events now.
  bool IsReady() const;

 private:
  Poller(Descriptor epoll, Descriptor wake);

  const Descriptor epoll_;  // Knows the watched descriptors.
  const Descriptor wake_;   // Readable after Wake.
  // True if Wake has written to wake_, and Wait has not read that yet.
  std::atomic<bool> woken_{false};
  std::vector<uint32_t> watched_;       // Events by descriptor; 0: not watched.
  std::array<epoll_event, 64> events_;  // Result of Wait.
  // Time that the last Wait with a timeout above 0 took.
  absl::Duration last_sleep_ = absl::InfiniteDuration();
};

}  // namespace nereus
