#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/verdicts.h"

namespace nereus {

// A server's count of the workers' votes on each step, with NanPolicy::kSkip:
// one vote against it, and the step is skipped.
//
// All servers come to the same verdict, having the same votes. Where a worker
// dies whose vote only some have, what those know is the next epoch's: so
// nothing is counted between Freeze and OnEpoch.
class Votes {
 public:
  explicit Votes(JobPtr job);

  // As of Machine, for frames of kind kVote.
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const;
  // The verdict, if this was the last vote.
  std::optional<StepVerdict> OnFrame(PeerId from, const FrameHeader& header);
  void Freeze() { frozen_ = true; }
  // Workers vote again on what has no verdict.
  void OnEpoch(JobPtr job);

  // The ranks of those whose votes on a step are not in: for messages.
  std::vector<int> Missing(int64_t step) const;

  const Verdicts& verdicts() const { return verdicts_; }

 private:
  struct Count {
    std::vector<bool> voted;  // By the workers' positions.
    int missing = 0;
    bool skipped = false;
  };

  // The last step that has a verdict, or was there before the job.
  int64_t decided_step() const;

  JobPtr job_;
  bool frozen_ = false;
  Verdicts verdicts_;
  std::map<int64_t, Count> open_;  // By step; at most two.
};

}  // namespace nereus
