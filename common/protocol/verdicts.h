#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/job.h"

namespace nereus {

// The last verdicts, with NanPolicy::kSkip, that a member has heard;
// kVerdictsMax of them.
class Verdicts {
 public:
  // Those of a new epoch's job, and others. What is known stays.
  void Add(absl::Span<const StepVerdict> verdicts);

  // Whether `step` is skipped; nothing: not yet known, or long ago.
  std::optional<bool> Skipped(int64_t step) const;

  // Steps ascend.
  const std::vector<StepVerdict>& all() const { return verdicts_; }

 private:
  std::vector<StepVerdict> verdicts_;
};

}  // namespace nereus
