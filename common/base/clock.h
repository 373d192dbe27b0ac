#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace nereus {

// Returns the time for leases, timeouts and latencies. Unlike the wall clock,
// it never jumps. Only differences of two such times mean anything. Any thread.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace nereus
