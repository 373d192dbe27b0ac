#pragma once

#include <cstdint>
#include <vector>

#include "common/protocol/job.h"
#include "worker/public/client.h"

namespace nereus {

// Who takes part in which step. A step that some worker had begun when an epoch
// ended is the earlier epoch's for all of them, whoever is there by then, so
// that no two take the same examples.
class StepPlan {
 public:
  // The job's next epoch.
  void Enter(JobPtr job);

  // REQUIRES: the worker takes part in `step`; steps ascend from call to call.
  StepInfo InfoOf(int64_t step, int rank);

 private:
  std::vector<JobPtr> epochs_;  // The last is the current one.
};

}  // namespace nereus
