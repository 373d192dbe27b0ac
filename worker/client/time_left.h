#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace nereus {

// Returns the time that is left until `until`; zero if it has passed.
inline absl::Duration TimeLeft(absl::Time until) {
  return std::max(until - SteadyNow(), absl::ZeroDuration());
}

}  // namespace nereus
