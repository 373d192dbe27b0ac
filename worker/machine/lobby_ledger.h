#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/membership.h"

namespace nereus {

// A process's account of its gatherings before it joins (Lobby): numbers the
// gatherings, keeps the last value, so that it can be sent again in another
// session, and takes the answer. Pure.
class LobbyLedger {
 public:
  // `process`: LobbyGather without `index` and `value`.
  explicit LobbyLedger(LobbyGather process) : last_(std::move(process)) {}

  // Begins the next gathering, and returns the message for the coordinator.
  // Returns nothing, and drops `value`, if the last gathering still waits for
  // its answer: the caller then goes on waiting for that answer. Errors:
  // kInvalidArgument, the value is too long; kFailedPrecondition, the process
  // gathers too often; the error with which the coordinator has refused the
  // process.
  absl::StatusOr<std::optional<LobbyGather>> Begin(std::string value) {
    NEREUS_TRY(end_);
    if (is_open_) return std::nullopt;
    const auto bytes = static_cast<int64_t>(value.size());
    if (bytes > kGatheredBytesMax) {
      return InvalidArgumentError("the value has ", bytes,
                                  " bytes, must be at most ",
                                  kGatheredBytesMax);
    }
    if (next_ == kLobbyGatheringsMax) {
      return FailedPreconditionError("a process gathers at most ",
                                     kLobbyGatheringsMax,
                                     " times before it joins the job");
    }
    last_.index = next_;
    last_.value = std::move(value);
    is_open_ = true;
    waits_for_.clear();
    return last_;
  }

  // Returns the message to send at the beginning of a session: that of the last
  // gathering, with or without an answer. REQUIRES: Begin was called.
  const LobbyGather& OnSession() const { return last_; }

  // Takes a message of the coordinator. Returns false if it ends the lobby for
  // this process.
  bool OnMessage(const CoordinatorMessage& message) {
    if (const auto* answer = std::get_if<LobbyGathered>(&message)) {
      // The answer of an earlier gathering may come twice.
      if (is_open_ && answer->index == last_.index) answer_ = *answer;
    } else if (const auto* waiting = std::get_if<Waiting>(&message)) {
      waits_for_ = waiting->text;
    } else if (const auto* refusal = std::get_if<Refusal>(&message)) {
      End(refusal->why);
    }
    return end_.ok();
  }
  // Ends all gatherings with an error. Keeps the first error.
  void End(const absl::Status& why) { end_.Update(why); }

  // True if Take returns.
  bool is_done() const { return answer_.has_value() || !end_.ok(); }
  // Returns the values of all processes, and ends the gathering. Errors: that
  // of End; kFailedPrecondition, with the error that the coordinator gave as
  // its answer. REQUIRES: is_done().
  absl::StatusOr<std::vector<std::string>> Take() {
    if (!answer_.has_value()) return end_;
    LobbyGathered answer = *std::exchange(answer_, std::nullopt);
    is_open_ = false;
    ++next_;
    if (answer.error.empty()) return std::move(answer.values);
    return FailedPreconditionError(answer.error);
  }

  // Last notice of the coordinator that says what the gathering waits for; "":
  // there was none.
  const std::string& waits_for() const { return waits_for_; }

 private:
  LobbyGather last_;      // Message of the last gathering.
  int32_t next_ = 0;      // Index of the next gathering.
  bool is_open_ = false;  // True if the last gathering has not ended.
  std::optional<LobbyGathered> answer_;  // Answer of the open gathering.
  absl::Status end_;                     // Why the lobby has ended, or OK.
  std::string waits_for_;
};

}  // namespace nereus
