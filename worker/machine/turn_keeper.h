#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "common/share/turn_taker.h"

namespace nereus {

// Turns of one worker whose device other jobs use, too: knows when the caller
// computes, and so when the worker needs the turn.
//
//   BeginStep returns --> the caller computes --> it has pushed the last layer
//                           '-- it waits --> ... --'
//
// The worker has the turn only while its caller computes a step. It gives the
// turn back before it waits, for a layer, for a step or for other workers, even
// in the middle of a step. Otherwise two jobs on two nodes could wait for each
// other for ever.
//
// Pure. The client holds a lock around it; the simulated worker uses it as it
// is.
class TurnKeeper {
 public:
  // `slot`: its weight is that of the job. See TurnTaker.
  TurnKeeper(TurnBoard* board, TurnSlot slot,
             absl::Duration limit_min = TurnTaker::kLimitMin)
      : taker_(board, std::move(slot), limit_min) {}

  // Sets the rule by which the coordinator orders turns.
  void SetRule(const TurnRule& rule) { rule_ = rule; }

  // Sets whether the caller computes outside of a step
  // (Client::TakeDeviceTurn).
  void SetOutside(bool outside) { outside_ = outside; }

  // Notes what the caller does: asks for the turn if it has an open step
  // (StepLedger::OpenStep) and does not wait, or if it computes outside of a
  // step; otherwise gives the turn back. Returns true if the caller computes:
  // it must have the turn (Try) to go on.
  bool Update(std::optional<int64_t> open, bool waits, absl::Time now) {
    const bool computes = !waits && Computes(open);
    if (computes) {
      step_ = open.value_or(step_);
      taker_.Ask(step_, rule_.KeyOf(step_, taker_.slot().weight), rule_.cost,
                 now);
    } else {
      taker_.Give(now);
    }
    return computes;
  }

  // True if the caller computes, unless it waits in a call.
  bool Computes(std::optional<int64_t> open) const {
    return open.has_value() || outside_;
  }

  TurnTaker& taker() { return taker_; }
  const TurnTaker& taker() const { return taker_; }

 private:
  TurnTaker taker_;
  TurnRule rule_;
  bool outside_ = false;  // See SetOutside.
  int64_t step_ = 0;      // Last step of which it knows.
};

}  // namespace nereus
