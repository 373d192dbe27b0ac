#include "worker/machine/step_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"

namespace nereus {
namespace {

absl::Status LeavingError() {
  return FailedPreconditionError(
      "this worker is leaving the job: after a Leave that timed out, only "
      "Leave may be called");
}

}  // namespace

StepLedger::StepLedger(std::vector<std::string> layers) {
  for (std::string& name : layers) layers_.push_back({std::move(name)});
}

// No round of a layer counts as done: each life begins with first values.
int64_t StepLedger::Restart(uint64_t epoch) {
  went_back_ = life_ > 0;
  if (went_back_) gathering_.GoBack(epoch);
  leaving_ = false;
  begun_.reset();
  pushed_count_ = 0;
  pushed_step_ = kInitialRound;
  asked_.reset();
  unfit_step_ = kInitialRound;
  loss_scale_.OnRestart();
  for (Layer& layer : layers_) {
    layer.pushed = kFetching;
    layer.done = kFetching;
  }
  return ++life_;
}

void StepLedger::Begin(const StepInfo& step) {
  begun_ = step;
  pushed_count_ = 0;
}

StepLedger::Done StepLedger::Finish(int layer, int64_t round, bool skipped) {
  Layer& finished = layers_[layer];
  if (round <= finished.done) return Done::kAgain;
  // A job that went back may come to another outcome of the same step.
  if (skipped) {
    skipped_step_ = round;
  } else if (skipped_step_ == round) {
    skipped_step_ = kInitialRound;
  }
  const bool is_first = std::exchange(finished.done, round) == kFetching;
  if (is_first) {
    finished.pushed = round;
    return Done::kFirst;
  }
  loss_scale_.OnStep(round, skipped, unfit_step_ == round);
  return Done::kRound;
}

void StepLedger::End(const absl::Status& outcome) {
  failure_.Update(outcome);
  over_ = true;
}

absl::StatusOr<StepLedger::Call> StepLedger::StepToBegin() const {
  NEREUS_TRY(Interruption());
  if (leaving_) return LeavingError();
  return Call{asked_.value_or(next_step()), life_};
}

bool StepLedger::Ask(const Call& call) {
  if (asked_.has_value() || call.life != life_) return false;
  asked_ = call.step;
  return true;
}

StepInfo StepLedger::TakeBegun() {
  asked_.reset();
  return *begun_;
}

absl::StatusOr<std::optional<StepLedger::Call>> StepLedger::BeginLeave() {
  NEREUS_TRY(Interruption());
  Call last{kInitialRound, life_};
  for (const Layer& layer : layers_) {
    last.step = std::max(last.step, layer.pushed);
  }
  if (std::exchange(leaving_, true)) return std::nullopt;
  return last;
}

absl::StatusOr<StepLedger::Pushed> StepLedger::BeginPush(int layer,
                                                         int64_t step) {
  NEREUS_TRY(CheckLayer(layer));
  NEREUS_TRY(Interruption());
  if (leaving_) return LeavingError();
  NEREUS_TRY(CheckNext(layers_[layer], step));
  // The caller has multiplied by the scale that the step began with. An
  // overflow since then changes the scale of the next step only.
  layers_[layer].pushed = step;
  if (++pushed_count_ == layers_.size()) pushed_step_ = step;
  return Pushed{life_, begun_->loss_scale};
}

// Each error says which call is missing or superfluous.
absl::Status StepLedger::CheckNext(const Layer& layer, int64_t step) const {
  const auto refuse = [&](const auto&... why) {
    return InvalidArgumentError("layer ", layer.name, ": step ", step,
                                " is pushed", why...);
  };
  if (!begun_.has_value())
    return refuse(", but no step has begun: call BeginStep first");
  if (step != begun_->step) {
    return refuse(", but step ", begun_->step, " has begun");
  }
  const bool is_idle = layer.pushed == layer.done;
  if (is_idle && step == layer.done + 1) return absl::OkStatus();
  if (!is_idle && step == layer.pushed + 1) {
    return refuse(", but step ", layer.pushed,
                  " is not waited for: Wait or WaitAll comes before the next "
                  "push");
  }
  return refuse(" after step ", layer.pushed, "; steps up to ", layer.done,
                " are done, and steps must follow one another");
}

absl::Status StepLedger::CheckLayer(int layer, size_t count) {
  if (layer >= 0 && layer < static_cast<int>(count)) return absl::OkStatus();
  return InvalidArgumentError("there is no layer ", layer, ": the model has ",
                              count, " layers, numbered from 0");
}

absl::Status StepLedger::CheckComplete(bool or_untouched) const {
  // If the caller has not taken the step that began (TakeBegun), it cannot have
  // pushed layers of it.
  const bool is_complete = !begun_.has_value() ||
                           pushed_step_ == begun_->step || asked_.has_value() ||
                           (or_untouched && pushed_count_ == 0);
  // If there is an interruption, the caller's next call returns its error.
  if (is_complete || is_interrupted()) return absl::OkStatus();
  std::string missing;
  for (const Layer& layer : layers_) {
    if (layer.pushed == begun_->step) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", layer.name);
  }
  return FailedPreconditionError(
      "step ", begun_->step, " is not complete: no gradient was pushed of ",
      missing, ". Push every layer in each step; a frozen layer pushes zeros");
}

absl::Status StepLedger::CheckAwaited(int layer, int64_t round) const {
  NEREUS_TRY(CheckLayer(layer));
  NEREUS_TRY(Interruption());
  if (round <= layers_[layer].pushed) return absl::OkStatus();
  return InvalidArgumentError("layer ", layers_[layer].name, ": step ", round,
                              " is waited for, but step ",
                              layers_[layer].pushed,
                              " was the last to be pushed");
}

absl::Status StepLedger::Interruption() const {
  if (!failure_.ok() || !went_back_) return failure_;
  return OutOfRangeError(
      "the job went back to an earlier step: call BeginStep, and do the step "
      "that it says");
}

bool StepLedger::IsDone(int layer, int64_t round) const {
  return !CheckLayer(layer).ok() || layers_[layer].done >= round;
}

bool StepLedger::IsAnswered(int layer, int64_t round) const {
  return is_interrupted() || IsDone(layer, round) ||
         round > layers_[layer].pushed;
}

bool StepLedger::HasFirstValues() const {
  return absl::c_all_of(
      layers_, [](const Layer& layer) { return layer.done > kFetching; });
}

bool StepLedger::HasBegun(int64_t step) const {
  return is_interrupted() || (begun_.has_value() && begun_->step >= step);
}

bool StepLedger::IsIdle() const {
  return absl::c_all_of(
      layers_, [](const Layer& layer) { return layer.done == layer.pushed; });
}

int64_t StepLedger::round() const {
  int64_t round = layers_.front().done;
  for (const Layer& layer : layers_) round = std::min(round, layer.done);
  return std::max(round, kInitialRound);
}

int64_t StepLedger::next_step() const {
  return begun_.has_value() ? begun_->step + 1 : layers_.front().done + 1;
}

}  // namespace nereus
