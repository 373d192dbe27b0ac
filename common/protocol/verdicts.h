#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/job.h"

namespace nereus {

// Newest step verdicts that a member knows, with NanPolicy::kSkip; at most
// kVerdictsMax. A verdict never changes once it is known. Servers and workers
// keep one list each, and an epoch hands all known verdicts to all members
// (JobHistory::verdicts). Otherwise two members could decide differently about
// a step if a worker died after its vote had reached only one of them. Not
// thread-safe.
class Verdicts {
 public:
  // Adds verdicts. If the verdict on a step is already known, it stays. The
  // oldest steps are dropped beyond kVerdictsMax.
  void Add(absl::Span<const StepVerdict> verdicts);

  // Returns true if `step` is skipped, false if its update is applied. Returns
  // nothing if the verdict is not known yet, or was dropped.
  std::optional<bool> Skipped(int64_t step) const;

  // Returns the verdicts; steps ascend.
  const std::vector<StepVerdict>& all() const { return verdicts_; }

 private:
  std::vector<StepVerdict> verdicts_;  // Sorted by step.
};

}  // namespace nereus
