#pragma once

#include <deque>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// The actions of a coordinator on their way to being carried out. A state is
// saved before what follows it: members that were told of an epoch which no
// disk has would wait for ever for a coordinator that comes back without it.
//
//   going on --a save fails--> holding back --a later try works--> going on
//
// While it holds back, members go on in the epoch that they know. Plain
// bookkeeping; the owner carries out the actions. Bounded: an owner gives up
// when failing_for is longer than a lease.
class SaveFirst {
 public:
  // Carries out what was held back and then `out`, in order, as far as states
  // can be saved. Log lines are never held back. Tries a save again at most
  // every kRetryInterval.
  void CarryOut(CoordinatorOutbox out, absl::Time now,
                absl::FunctionRef<absl::Status(const CoordinatorState&)> save,
                absl::FunctionRef<void(const CoordinatorAction&)> carry_out);

  // Forgets what is held back: the coordinator is gone.
  void Clear();

  // Whether nothing is held back.
  bool empty() const { return held_.empty(); }

  // Time since the first of the saves that failed; zero if none does now.
  absl::Duration failing_for(absl::Time now) const;
  const absl::Status& failure() const { return failure_; }

 private:
  std::deque<CoordinatorAction> held_;
  std::optional<absl::Time> failing_since_;
  absl::Time tried_at_;
  absl::Status failure_;  // Of the last save that failed.
};

}  // namespace nereus
