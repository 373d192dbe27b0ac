#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace nereus {

// The time for leases, timeouts and latencies: it never jumps, as the wall
// clock does when it is set. Its zero means nothing.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace nereus
