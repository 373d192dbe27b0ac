#pragma once

#include <deque>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Queue of the actions of a coordinator until the driver carries them out.
// SaveFirst saves a state (SaveState) before it lets pass the actions that
// follow. Otherwise members could hear of an epoch that is not on disk. A
// restarted coordinator would not know this epoch, and would have to end the
// job.
//
//   passing --a save fails--> holding back --a later try succeeds--> passing
//
// While it holds back, members go on in the epoch that they know. Plain
// bookkeeping; the owner carries out the actions. The queue is bounded only if
// the owner gives up when failing_for is longer than a lease.
class SaveFirst {
 public:
  // Carries out the actions that were held back, and then those in `out`, in
  // order, until a save fails. Log lines in `out` are never held back: they
  // come first. `save` saves a state, `carry_out` carries out any other action.
  // A failed save is tried again after 200 ms at the earliest.
  void CarryOut(CoordinatorOutbox out, absl::Time now,
                absl::FunctionRef<absl::Status(const CoordinatorState&)> save,
                absl::FunctionRef<void(const CoordinatorAction&)> carry_out);

  // Forgets the actions that are held back: the coordinator is gone.
  void Clear();

  // True if no action is held back.
  bool empty() const { return held_.empty(); }

  // Time for which saves have been failing: since the first failure after the
  // last success. Zero if the last save succeeded.
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
