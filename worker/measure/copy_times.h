#pragma once

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/public/client_report.h"

namespace nereus {

// Time of a GPU's copies: while the GPU also computed, and while it did not.
struct CopyTimes {
  absl::Duration hidden;
  absl::Duration exposed;

  CopyTimes& operator+=(const CopyTimes& other) {
    hidden += other.hidden;
    exposed += other.exposed;
    return *this;
  }
  // Share of the time that is hidden; 0 without copies.
  double hidden_share() const {
    const absl::Duration all = hidden + exposed;
    return all > absl::ZeroDuration() ? absl::FDivDuration(hidden, all) : 0.0;
  }
};

// Returns the time of the copies of `kind`. REQUIRES: the spans of computing in
// `spans` are in the order of time.
CopyTimes CopyTimesOf(absl::Span<const GpuSpan> spans, GpuSpan::Kind kind);

}  // namespace nereus
