#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/job.h"

namespace nereus {

// Newest verdicts on steps that a member knows, with NanPolicy::kSkip; at most
// kVerdictsMax. A verdict never changes once a member knows it. Each server and
// each worker has one such list, and at the beginning of an epoch each member
// gets the verdicts of all members (JobHistory::verdicts). Otherwise two
// servers could reach different verdicts on a step, if a worker died when its
// vote had reached only one of them. Not thread-safe.
class Verdicts {
 public:
  // Adds verdicts. If the verdict on a step is already known, the known one
  // stays. If there are then more than kVerdictsMax verdicts, drops those on
  // the oldest steps.
  void Add(absl::Span<const StepVerdict> verdicts);

  // Returns true if the verdict skips `step`, false if it does not. Returns
  // nothing if the verdict is not known yet, or was dropped.
  std::optional<bool> Skipped(int64_t step) const;

  // Returns the verdicts; steps ascend.
  const std::vector<StepVerdict>& all() const { return verdicts_; }

 private:
  std::vector<StepVerdict> verdicts_;  // Sorted by step.
};

}  // namespace nereus
