#include "worker/machine/caller.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"

namespace nereus {

void Caller::OnMachine(WorkerMachine* machine, int64_t life, Outbox& out) {
  machine_ = machine;
  life_ = life;
  waits_for_.reset();
  is_started_ = life == 1;
  if (is_started_) machine_->Start(out);
}

// In the first life OnMachine has already started the machine.
void Caller::OnValuesFree(Outbox& out) {
  if (std::exchange(is_started_, true)) return;
  machine_->Start(out);
}

std::optional<StepInfo> Caller::OnBegin(const StepLedger::Call& call, int rank,
                                        Outbox& out) {
  // The job has gone back since the call, so the caller may not do this step.
  if (call.life != life_) return std::nullopt;
  waits_for_ = call.step;
  return OnRetry(rank, out);
}

std::optional<StepInfo> Caller::OnRetry(int rank, Outbox& out) {
  if (!waits_for_.has_value() || !machine_->BeginStep(*waits_for_, out)) {
    return std::nullopt;
  }
  const int64_t step = *std::exchange(waits_for_, std::nullopt);
  if (const auto bytes = fusion_.OnBegin(step)) machine_->SetFusion(*bytes);
  StepInfo info = steps_.InfoOf(step, rank);
  info.went_back = begun_life_ > 0 && begun_life_ != life_;
  begun_life_ = life_;
  return info;
}

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
