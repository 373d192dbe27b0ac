#include "server/coordinator/fusion_tuning.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Number of steps that a worker measures in a trial, after some first steps
// that do not count.
constexpr int32_t kStepsMeasured = 16;

// Time in seconds in which a message usually reaches every worker. It counts as
// kAheadStepsMin steps at least, and as kAheadStepsMax steps at most.
constexpr double kAheadSeconds = 0.1;
constexpr double kAheadStepsMin = 2;
constexpr double kAheadStepsMax = 100;

// Largest time of a step, in seconds, that a worker may report.
constexpr double kStepSecondsMax = 24 * 3600;

}  // namespace

absl::Status FusionTuning::Check(const FusionTimed& timed) {
  if (timed.step_seconds > 0 && timed.step_seconds <= kStepSecondsMax &&
      timed.begun_step >= 0 && timed.begun_step <= kStepMax) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("a worker has measured ", timed.step_seconds,
                              " seconds a step up to step ", timed.begun_step);
}

std::optional<int64_t> FusionTuning::bytes() const {
  if (!on_) return std::nullopt;
  return tuner_.done() ? tuner_.best() : tuner_.next();
}

// All workers switch at a step that is far enough ahead: usually no worker has
// begun it when the message arrives.
const SetFusion& FusionTuning::Next(int64_t begun_step) {
  SetFusion set;
  set.trial = trial_;
  set.bytes = *bytes();
  const double ahead =
      step_seconds_ > 0 ? std::ceil(kAheadSeconds / step_seconds_) : 0;
  set.from_step = begun_step + static_cast<int64_t>(std::clamp(
                                   ahead, kAheadStepsMin, kAheadStepsMax));
  set.steps = tuner_.done() ? 0 : kStepsMeasured;
  return told_.emplace(set);
}

std::optional<SetFusion> FusionTuning::OnEpoch(std::vector<int32_t> workers,
                                               int64_t begun_step) {
  if (!on_) return std::nullopt;
  workers_ = std::move(workers);
  answers_.clear();
  return Next(begun_step);
}

std::optional<SetFusion> FusionTuning::Restart(int64_t first,
                                               int64_t begun_step) {
  if (!on_) return std::nullopt;
  first_ = first;
  tuner_ = FusionTuner(first);
  ++trial_;
  answers_.clear();
  return Next(begun_step);
}

std::optional<SetFusion> FusionTuning::OnTimed(int32_t worker,
                                               const FusionTimed& timed) {
  const bool counts = on_ && !tuner_.done() && timed.trial == trial_ &&
                      absl::c_count(workers_, worker) > 0;
  if (!counts) return std::nullopt;
  answers_[worker] = timed;
  if (answers_.size() < workers_.size()) return std::nullopt;
  int64_t begun_step = 0;
  step_seconds_ = 0;
  for (const auto& [rank, answer] : std::exchange(answers_, {})) {
    begun_step = std::max(begun_step, answer.begun_step);
    step_seconds_ = std::max(step_seconds_, answer.step_seconds);
  }
  tuner_.Observe(step_seconds_);
  ++trial_;
  return Next(begun_step);
}

std::string FusionTuning::DescribeBest() const {
  return absl::StrCat(
      "fusion of ", tuner_.best(), " bytes from step ", told_->from_step,
      " on: an iteration took ",
      absl::FormatDuration(absl::Seconds(tuner_.best_seconds())),
      ", the best by ", tuner_.trials(), " trials");
}

}  // namespace nereus
