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

// Waits until a watched descriptor is ready, or until another thread wakes it.
// Owns epoll and the descriptor that Wake writes to.
//
// Wake is thread-safe; all else belongs to the thread that polls.
class Poller {
 public:
  // Errors: kUnavailable, the process has no descriptors left.
  static absl::StatusOr<std::unique_ptr<Poller>> Create();

  // Watches `fd` for `events` (EPOLLIN, EPOLLOUT). Wait then returns them with
  // `owner`. 0 events: stops watching, so that not even the end of a connection
  // is reported. Costs no system call if the events do not change. REQUIRES: no
  // other owner watches `fd`. The new owner might not replace the old one.
  void Watch(int fd, uint32_t events, void* owner);

  // Drops the record of `fd`. The caller closes `fd` right after this call, and
  // then epoll drops it by itself.
  void Forget(int fd);

  // Ends the Wait under way, or the next one.
  void Wake();

  // Waits until there are events, at most for `timeout`, rounded up to whole
  // milliseconds; above 24 h, without limit. Returns the events. Their data.ptr
  // is the owner; null for a Wake. They are valid until the next call.
  absl::Span<const epoll_event> Wait(absl::Duration timeout);

  // True if the last Wait that could sleep (timeout > 0) was brief. The next
  // one may be as brief, and then falling asleep and waking up would take about
  // as long.
  bool slept_briefly() const;

  // True if Wait would return events now.
  bool IsReady() const;

 private:
  Poller(Descriptor epoll, Descriptor wake);

  const Descriptor epoll_;  // Knows the watched descriptors.
  const Descriptor wake_;   // Readable after Wake.
  // True if Wake has written and Wait has not read.
  std::atomic<bool> woken_{false};
  std::vector<uint32_t> watched_;       // Events by descriptor; 0: not watched.
  std::array<epoll_event, 64> events_;  // Result of Wait.
  // Time in the last Wait that could sleep.
  absl::Duration last_sleep_ = absl::InfiniteDuration();
};

}  // namespace nereus
