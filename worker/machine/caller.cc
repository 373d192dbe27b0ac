#include "worker/machine/caller.h"

#include <utility>

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

}  // namespace nereus
