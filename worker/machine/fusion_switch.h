#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

// A worker's side of the tuning of fusion: switches in the step that the
// coordinator says, and measures what steps take from then on.
class FusionSwitch {
 public:
  // The coordinator's word. Only the last one counts. The same one again: the
  // answer may have been lost.
  void OnSet(const SetFusion& set) {
    if (set_ == set) {
      unsaid_ = said_;
      return;
    }
    set_ = set;
    said_.reset();
    unsaid_.reset();
    switched_ = false;
    began_.reset();
    taken_.clear();
  }

  // The worker begins `step`. The threshold that counts from now on, if it
  // changes now.
  std::optional<int64_t> OnBegin(int64_t step) {
    if (!set_.has_value() || switched_ || step < set_->from_step) {
      return std::nullopt;
    }
    switched_ = true;
    switched_in_ = step;
    return set_->bytes;
  }

  // The same, at `now`: what is to be said of the trial, if it is over. A
  // median: now and then the machine does something else.
  std::optional<FusionTimed> OnBegin(int64_t step, absl::Time now) {
    if (unsaid_.has_value()) return std::exchange(unsaid_, std::nullopt);
    if (!switched_ || set_->steps == 0 || said_.has_value() ||
        step < switched_in_ + kStepsIgnored) {
      return std::nullopt;
    }
    if (began_.has_value()) {
      taken_.push_back(absl::ToDoubleSeconds(now - *began_));
    }
    began_ = now;
    if (static_cast<int32_t>(taken_.size()) < set_->steps) return std::nullopt;
    const auto middle = taken_.begin() + set_->steps / 2;
    std::nth_element(taken_.begin(), middle, taken_.end());
    said_ = FusionTimed{set_->trial, step, *middle};
    return said_;
  }

 private:
  // Of those with a new threshold: the first may still wait for what was sent
  // with the old one.
  static constexpr int64_t kStepsIgnored = 2;

  std::optional<SetFusion> set_;
  bool switched_ = false;
  int64_t switched_in_ = 0;
  std::optional<absl::Time> began_;    // The last step that counts.
  std::vector<double> taken_;          // Seconds, by steps that count.
  std::optional<FusionTimed> said_;    // The answer,
  std::optional<FusionTimed> unsaid_;  // which is to be given again.
};

}  // namespace nereus
