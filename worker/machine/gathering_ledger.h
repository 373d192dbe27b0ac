#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/membership.h"

namespace nereus {

// A worker's account of its gatherings (Gather): numbers them, and keeps the
// value that has no answer yet. Pure.
class GatheringLedger {
 public:
  // Begins the next gathering. `step`: GatheringId::step of the worker now.
  // Returns the message for the coordinator; nothing if a gathering waits for
  // its answer: then this call goes on with that gathering.
  std::optional<Gather> Begin(int64_t step, std::string value) {
    if (open_.has_value()) return std::nullopt;
    if (step != next_.step) next_ = {step, 0};
    open_ = {next_, std::move(value)};
    return open_;
  }

  // Returns the message of the gathering that has no answer yet, to send it
  // again.
  std::optional<Gather> Unanswered() const {
    return answer_.has_value() ? std::nullopt : open_;
  }

  // Notes a message of the coordinator. Another gathering's answer is ignored.
  void OnGathered(const Gathered& answer) {
    if (open_.has_value() && open_->id == answer.id) answer_ = answer;
  }
  bool is_answered() const { return answer_.has_value(); }

  // Returns the values, and ends the gathering. Errors: kFailedPrecondition,
  // the answer has an error. REQUIRES: is_answered().
  absl::StatusOr<std::vector<std::string>> Take() {
    const Gathered answer = *std::exchange(answer_, std::nullopt);
    open_.reset();
    ++next_.index;
    if (answer.error.empty()) return answer.values;
    return FailedPreconditionError(answer.error);
  }

  // Forgets all gatherings: the job goes back.
  void Restart() { *this = GatheringLedger(); }

 private:
  GatheringId next_;                // Number of the next gathering.
  std::optional<Gather> open_;      // The gathering that has begun.
  std::optional<Gathered> answer_;  // Its answer.
};

}  // namespace nereus
