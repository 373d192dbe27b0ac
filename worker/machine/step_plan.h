#pragma once

#include <cstdint>
#include <vector>

#include "common/protocol/job.h"
#include "worker/public/client.h"

namespace nereus {

// Shares out the examples of each step among the workers that take part in it.
//
// A step that some worker had begun when an epoch ended belongs to that epoch
// on every worker, even if the next epoch has other workers. Otherwise two
// workers could take the same examples: one worker by the shares of the old
// epoch, another worker by the shares of the new epoch.
//
// Example: three workers are in epoch 1, and worker 0 has begun step 7 when
// worker 2 is lost. Workers 0 and 1 do step 7 with thirds of its examples, and
// step 8, the first step of epoch 2, with halves.
class StepPlan {
 public:
  // Follows the job into its next epoch.
  void Enter(JobPtr job);

  // Returns the share of the worker `rank` in `step`. REQUIRES: the worker
  // takes part in the step; steps ascend from call to call.
  StepInfo InfoOf(int64_t step, int rank);

 private:
  // Epochs that steps may still belong to, in order; the last is the current.
  std::vector<JobPtr> epochs_;
};

}  // namespace nereus
