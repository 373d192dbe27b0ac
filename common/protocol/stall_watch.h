#pragma once

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

// Notices that a member has waited for the same round for too long. Its owner
// says now and then for which one it waits.
class StallWatch {
 public:
  // `waiting`: the oldest open round, if any; `waited` is filled in. Returns it
  // if it has been the oldest for `threshold` or longer.
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
  std::optional<std::pair<int32_t, int64_t>> round_;  // Layer and round.
  absl::Time since_;
};

}  // namespace nereus
