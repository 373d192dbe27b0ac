#pragma once

#include <optional>

#include "absl/time/time.h"
#include "common/protocol/activity.h"

namespace nereus {

// Sums up how the caller of a client spends the time of its steps: in forward,
// in backward, in what follows, and in calls that wait (Activity).
//
// A step lasts from one BeginStep to the next. Time before its first push is
// forward, time between two pushes is backward, and time after a push that ends
// with a wait, or with the next step, is `other`. So time in which the caller
// loads its examples before the first push counts as forward.
//
// Pure.
class StepPhases {
 public:
  // Handles a call of BeginStep that has begun a step.
  void OnBegin(absl::Time from, absl::Time to);
  // Handles any other call that waits.
  void OnWait(absl::Time from, absl::Time to);
  // Handles a push.
  void OnPush(absl::Time now);

  // Returns the sums so far. Fields about traffic are empty.
  const Activity& sums() const { return sums_; }

 private:
  // Adds the time since mark_ to `phase`, and moves mark_ to `now`.
  void Add(absl::Time now, absl::Duration& phase);

  Activity sums_;
  std::optional<absl::Time> mark_;  // End of the time in sums_; nothing before
                                    // the first step.
  bool has_pushed_ = false;         // True after the first push of the step.
};

}  // namespace nereus
