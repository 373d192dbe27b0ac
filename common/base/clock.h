#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace nereus {

// Returns the time of a clock that never jumps, unlike the wall clock. Leases,
// timeouts and latencies are measured by it. The clock begins at an arbitrary
// moment, so only the difference of two of its times means anything. Any thread
// may call this.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace nereus
