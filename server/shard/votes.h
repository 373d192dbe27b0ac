#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame_set.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/verdicts.h"

namespace nereus {

// Counts the votes of the workers on each step, with NanPolicy::kSkip. A single
// vote against a step skips it.
//
//   no vote --first vote--> open --last contributor's vote--> verdict
//
// Only servers that need verdicts count votes: those with rounds to close, and
// the primary of shard 0, which tells the workers. A server without rounds
// would hold up no worker, so workers could be any number of steps ahead of it.
//
// These servers reach the same verdict, because every worker sends its vote to
// all of them. A worker may die after only some servers have got its vote. Then
// the next epoch tells all servers the verdicts that these servers have
// reported. Therefore no vote counts between Freeze and OnEpoch: a verdict made
// in this time would be in no report.
class Votes {
 public:
  // `server`: number of the server that counts.
  Votes(JobPtr job, int server);

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
    FrameSet voted;        // Votes, by position of the worker.
    bool skipped = false;  // True once a vote is against the step.
  };

  // Last step that has a verdict; the base round if that is later or no step
  // has one.
  int64_t decided_step() const;

  const int server_;  // See the constructor.
  JobPtr job_;
  bool counts_ = false;  // True if this server counts votes in this epoch.
  bool frozen_ = false;
  Verdicts verdicts_;              // Verdicts on the last steps.
  std::map<int64_t, Count> open_;  // Indexed by step; at most two.
};

}  // namespace nereus
