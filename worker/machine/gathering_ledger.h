#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/membership.h"

namespace nereus {

// A worker's account of its gatherings (Client::Gather): numbers the
// gatherings, and keeps the caller's value that has no answer yet. Pure.
class GatheringLedger {
 public:
  // Begins the next gathering. `step`: value of its GatheringId::step. Returns
  // the message for the coordinator. Returns nothing, and drops `value`, if the
  // last gathering still waits for its answer: the caller then goes on waiting
  // for that answer.
  std::optional<Gather> Begin(int64_t step, std::string value) {
    if (open_.has_value()) return std::nullopt;
    if (step != next_.step) next_ = {step};
    next_.went_back_in = step == kInitialRound ? went_back_in_ : 0;
    open_ = {next_, std::move(value)};
    return open_;
  }

  // Returns the message of the gathering that has no answer yet, so that it can
  // be sent again; nothing if there is none.
  std::optional<Gather> Unanswered() const {
    return answer_.has_value() ? std::nullopt : open_;
  }

  // Takes an answer of the coordinator. Ignores the answer to a gathering that
  // does not wait for one.
  void OnGathered(const Gathered& answer) {
    if (open_.has_value() && open_->id == answer.id) answer_ = answer;
  }
  bool is_answered() const { return answer_.has_value(); }

  // Returns the values of all workers, and ends the gathering. Errors:
  // kFailedPrecondition, with the error that the coordinator gave as its
  // answer. REQUIRES: is_answered().
  absl::StatusOr<std::vector<std::string>> Take() {
    const Gathered answer = *std::exchange(answer_, std::nullopt);
    open_.reset();
    ++next_.index;
    if (answer.error.empty()) return answer.values;
    return FailedPreconditionError(answer.error);
  }

  // Forgets all gatherings, because the worker goes back in `epoch`.
  void GoBack(uint64_t epoch) {
    *this = GatheringLedger();
    went_back_in_ = epoch;
  }
  // Epoch of the last GoBack; 0 before the first.
  uint64_t went_back_in() const { return went_back_in_; }

 private:
  uint64_t went_back_in_ = 0;       // See went_back_in().
  GatheringId next_;                // Number of the next gathering.
  std::optional<Gather> open_;      // The gathering that has begun.
  std::optional<Gathered> answer_;  // Its answer.
};

}  // namespace nereus
