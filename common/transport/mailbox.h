#ifndef NEREUS_COMMON_TRANSPORT_MAILBOX_H_
#define NEREUS_COMMON_TRANSPORT_MAILBOX_H_

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/time/time.h"

namespace nereus {

// What a transport's threads have for its owner's. Thread-safe; does not bound
// what it holds, its writers do.
template <typename Event>
class Mailbox {
 public:
  void Push(Event event) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      events_.push_back(std::move(event));
    }
    changed_.notify_one();
  }

  // Ends a Take that waits, or else the next one.
  void Wake() {
    std::lock_guard<std::mutex> lock(mu_);
    woken_ = true;
    changed_.notify_one();
  }

  // All that is there, once there is something, Wake was called or `timeout`
  // has passed.
  std::deque<Event> Take(absl::Duration timeout) {
    // The clock's own arithmetic overflows on an infinite wait.
    const absl::Duration wait = std::min(timeout, absl::Hours(24 * 365));
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                      [this] { return woken_ || !events_.empty(); });
    woken_ = false;
    return std::exchange(events_, {});
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Event> events_;  // Guarded by mu_.
  bool woken_ = false;        // Guarded by mu_.
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_MAILBOX_H_
