#pragma once

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

// Notices that a member has waited too long for one round. MemberProcess calls
// Watch with each heartbeat. Not thread-safe. Holds one round at a time.
class StallWatch {
 public:
  // Takes the oldest open round at `now`, `waiting`, if any. If it has been the
  // oldest open round for `threshold` or longer, returns it with Stall::waited
  // set; else nothing.
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
  // Layer and round of the last call; nothing if no round was open.
  std::optional<std::pair<int32_t, int64_t>> round_;
  absl::Time since_;  // Time at which round_ became the oldest open round.
};

}  // namespace nereus
