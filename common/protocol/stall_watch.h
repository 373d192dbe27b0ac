#pragma once

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

// Notices that a member has waited too long for one round. MemberProcess calls
// Watch once for each heartbeat. Not thread-safe. Remembers only one round, the
// oldest open one.
class StallWatch {
 public:
  // Takes the oldest open round of the member as `waiting`; nothing if no round
  // is open. `now` is the time of the call. If this round has been the oldest
  // open round for `threshold` or longer, returns it, with Stall::waited set.
  // Otherwise returns nothing.
  std::optional<Stall> Watch(std::optional<Stall> waiting, absl::Time now,
                             absl::Duration threshold) {
    const bool same = waiting.has_value() && round_.has_value() &&
                      *round_ == std::pair(waiting->layer, waiting->round);
    if (!same) since_ = now;
    round_.reset();
    if (!waiting.has_value()) return std::nullopt;
    round_ = std::pair(waiting->layer, waiting->round);
    waiting->waited = now - since_;
    return waiting->waited >= threshold ? waiting : std::nullopt;
  }

 private:
  // Layer and round that the last call of Watch took, if any.
  std::optional<std::pair<int32_t, int64_t>> round_;
  absl::Time since_;  // Time of the first call that took round_.
};

}  // namespace nereus
