#include "worker/machine/step_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"

namespace nereus {

void StepPlan::Enter(JobPtr job) { epochs_.push_back(std::move(job)); }

StepInfo StepPlan::InfoOf(int64_t step, int rank) {
  // A step belongs to the last epoch of this worker that does not begin after
  // the step.
  size_t index = epochs_.size() - 1;
  while (index > 0 && epochs_[index]->history.first_step > step &&
         epochs_[index - 1]->PositionOf(rank) >= 0) {
    --index;
  }
  epochs_.erase(epochs_.begin(), epochs_.begin() + index);
  const Job& job = *epochs_.front();
  // A step before the first step of its epoch gets the line-up of that first
  // step, which includes the workers that join there. contributions_before
  // below counts with the same number of workers.
  const Lineup& lineup = job.LineupOf(std::max(step, job.history.first_step));
  StepInfo info;
  info.step = step;
  info.position = job.PositionOf(rank);
  info.workers = lineup.workers();
  info.contributions_before = job.history.contributions_before +
                              (step - job.history.first_step) * info.workers;
  info.local_position = lineup.LocalOf(rank);
  NEREUS_CHECK(info.local_position >= 0)
      << "step " << step << " of worker " << rank;
  info.local_workers = static_cast<int>(lineup.at(lineup.HostOf(rank)).size());
  return info;
}

}  // namespace nereus
