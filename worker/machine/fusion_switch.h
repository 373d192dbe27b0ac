#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

// A worker's part in the trials by which the coordinator tunes the fusion
// threshold (JobOptions::fusion_bytes). In a trial the worker switches to the
// coordinator's threshold in the step that the coordinator names, and measures
// how long steps take from then on. All workers switch in the same step:
// otherwise the trial would measure a mixture of two thresholds. Pure; the
// Caller owns it.
class FusionSwitch {
 public:
  // Takes a message of the coordinator, which replaces the last one. If the
  // coordinator repeats a message, the answer may have been lost, and OnBegin
  // returns it again.
  void OnSet(const SetFusion& set) {
    if (set_ == set) {
      unsaid_ = said_;
      return;
    }
    set_ = set;
    said_.reset();
    unsaid_.reset();
    switched_ = false;
    began_at_.reset();
    taken_.clear();
  }

  // Notes that the worker begins `step`. Returns the threshold that holds from
  // now on; nullopt if the threshold does not change.
  std::optional<int64_t> OnBegin(int64_t step) {
    if (!set_.has_value() || switched_ || step < set_->from_step) {
      return std::nullopt;
    }
    switched_ = true;
    switched_in_ = step;
    return set_->bytes;
  }

  // Notes that the worker has begun `step` at `now`. Returns the answer for the
  // coordinator if the trial is over. The answer has the median of the steps'
  // times, so that a step in which the computer was busy with something else
  // does not count.
  std::optional<FusionTimed> OnBegin(int64_t step, absl::Time now) {
    if (unsaid_.has_value()) return std::exchange(unsaid_, std::nullopt);
    if (!switched_ || set_->steps == 0 || said_.has_value() ||
        step < switched_in_ + kStepsIgnored) {
      return std::nullopt;
    }
    if (began_at_.has_value()) {
      taken_.push_back(absl::ToDoubleSeconds(now - *began_at_));
    }
    began_at_ = now;
    if (static_cast<int32_t>(taken_.size()) < set_->steps) return std::nullopt;
    const auto middle = taken_.begin() + set_->steps / 2;
    std::nth_element(taken_.begin(), middle, taken_.end());
    said_ = FusionTimed{set_->trial, step, *middle};
    return said_;
  }

 private:
  // Number of steps that are not measured after a switch: they may still wait
  // for frames that were sent with the old threshold.
  static constexpr int64_t kStepsIgnored = 2;

  std::optional<SetFusion> set_;  // The coordinator's last message.
  bool switched_ = false;    // True if the worker has the message's threshold.
  int64_t switched_in_ = 0;  // Step in which the worker switched to it.
  std::optional<absl::Time> began_at_;  // Begin of the step being measured.
  std::vector<double> taken_;           // Seconds of each measured step.
  std::optional<FusionTimed> said_;     // Answer that OnBegin has returned.
  std::optional<FusionTimed> unsaid_;   // Answer to return again.
};

}  // namespace nereus
