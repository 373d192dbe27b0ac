#pragma once

#include <deque>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Queue of the actions of a coordinator until they are carried out. A state is
// saved before the actions that follow it. Otherwise members could be told of
// an epoch that is not on disk. A coordinator that is started again would not
// know this epoch, and would have to end the job.
//
//   passing --a save fails--> holding back --a later try succeeds--> passing
//
// While it holds back, members go on in the epoch that they know. Plain
// bookkeeping; the owner carries out the actions. The queue is bounded only if
// the owner gives up when failing_for is longer than a lease.
class SaveFirst {
 public:
  // Carries out the actions that were held back, and then `out`, in order,
  // until a save fails. Log lines are never held back. Tries a failed save
  // again after 200 ms at the earliest.
  void CarryOut(CoordinatorOutbox out, absl::Time now,
                absl::FunctionRef<absl::Status(const CoordinatorState&)> save,
                absl::FunctionRef<void(const CoordinatorAction&)> carry_out);

  // Forgets the actions that are held back: the coordinator is gone.
  void Clear();

  // True if no action is held back.
  bool empty() const { return held_.empty(); }

  // Time since the first save that failed after the last successful one; zero
  // if the last save succeeded.
  absl::Duration failing_for(absl::Time now) const;
  // Error of the last failed save.
  const absl::Status& failure() const { return failure_; }

 private:
  std::deque<CoordinatorAction> held_;  // Actions that are held back.
  // Time of the first save that failed after the last successful one.
  std::optional<absl::Time> failing_since_;
  absl::Time tried_at_;   // Time of the last failed save.
  absl::Status failure_;  // Error of the last failed save.
};

}  // namespace nereus
