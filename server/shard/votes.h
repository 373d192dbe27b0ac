#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/verdicts.h"

namespace nereus {

// Counts the votes of the workers on each step, with NanPolicy::kSkip. A single
// vote against a step skips it.
//
//   no vote --first vote--> open --last contributor's vote--> verdict
//
// All servers reach the same verdict, because all of them get the same votes.
// If a worker dies after some servers have its vote, the verdicts of these
// servers reach the others with the next epoch. Therefore no vote counts
// between Freeze and OnEpoch: a verdict made then would be in no report.
class Votes {
 public:
  explicit Votes(JobPtr job);

  // Checks and counts frames of kind kVote, as Machine does.
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const;
  // Returns the verdict on the step if this vote was the last one.
  std::optional<StepVerdict> OnFrame(PeerId from, const FrameHeader& header);
  // Counts no vote until OnEpoch.
  void Freeze() { frozen_ = true; }
  // Starts an epoch. Workers vote again on steps without a verdict.
  void OnEpoch(JobPtr job);

  // Ranks of the workers that have not voted on `step`; for messages.
  std::vector<int> Missing(int64_t step) const;

  const Verdicts& verdicts() const { return verdicts_; }

 private:
  // Votes on one step.
  struct Count {
    std::vector<bool> voted;  // Indexed by position of the worker.
    int missing = 0;          // Count of false in voted.
    bool skipped = false;     // True once a vote is against the step.
  };

  // Last step that has a verdict, or the base round if there is none.
  int64_t decided_step() const;

  JobPtr job_;
  bool frozen_ = false;
  Verdicts verdicts_;              // Verdicts on the last steps.
  std::map<int64_t, Count> open_;  // Indexed by step; at most two.
};

}  // namespace nereus
