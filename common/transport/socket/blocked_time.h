#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace nereus {

// Sums up the time in which frames wait because the kernel takes no more bytes
// of a connection: the network is slower than this process. Time in which the
// other process takes no bytes does not count, because that is not the
// network's fault.
class BlockedTime {
 public:
  // Handles the end of a write. `is_full`: true if frames are left because the
  // kernel takes no more.
  void OnWritten(bool is_full, absl::Time now) {
    if (is_full && since_ == absl::InfiniteFuture()) since_ = now;
    if (!is_full) Stop(now);
  }

  // Returns the time since the last call, and begins anew. `peer_limited`: time
  // in which the kernel did not send because the other side took no bytes, over
  // the life of the connection.
  absl::Duration Take(absl::Duration peer_limited, absl::Time now) {
    if (since_ != absl::InfiniteFuture()) {
      Stop(now);
      since_ = now;
    }
    const absl::Duration limited =
        peer_limited - std::exchange(peer_limited_, peer_limited);
    return std::max(absl::ZeroDuration(),
                    std::exchange(sum_, absl::ZeroDuration()) - limited);
  }

 private:
  void Stop(absl::Time now) {
    if (since_ != absl::InfiniteFuture()) sum_ += now - since_;
    since_ = absl::InfiniteFuture();
  }

  absl::Duration sum_;                         // Time since the last Take.
  absl::Duration peer_limited_;                // Argument of the last Take.
  absl::Time since_ = absl::InfiniteFuture();  // Begin of the wait under way.
};

}  // namespace nereus
