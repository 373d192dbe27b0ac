#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/job_status.h"

namespace nereus {

// Steps per second that the job begins, over the last kRateWindow. Bounded: one
// entry for each call in that time.
class StepRate {
 public:
  // Notes the last step that any worker has begun. If that step is earlier than
  // before, because the job has gone back to a checkpoint, forgets all earlier
  // notes.
  void Note(absl::Time now, int64_t begun_step) {
    if (!begun_.empty() && begun_.back().second > begun_step) begun_.clear();
    begun_.emplace_back(now, begun_step);
    while (now - begun_.front().first > kRateWindow) begun_.pop_front();
  }

  // Returns the steps per second; 0 before there are two notes.
  double PerSecond() const {
    if (begun_.size() < 2) return 0;
    const auto& [from, first] = begun_.front();
    const auto& [to, last] = begun_.back();
    if (to == from) return 0;
    return static_cast<double>(last - first) / absl::ToDoubleSeconds(to - from);
  }

 private:
  std::deque<std::pair<absl::Time, int64_t>> begun_;  // Times and last steps.
};

}  // namespace nereus
