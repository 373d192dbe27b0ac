#include "server/coordinator/tally.h"

namespace nereus {
namespace {

// Time between two updates of the paces: as heartbeats bring news.
constexpr absl::Duration kPacesInterval = kHeartbeatInterval;

}  // namespace

void Tally::OnEpoch(const Job& job) {
  ++counts_.epochs;
  if (!routes_.empty() && routes_ != job.routes) ++counts_.plan_changes;
  routes_ = job.routes;
}

void Tally::OnCheckpoint(bool is_complete, absl::Time now) {
  ++(is_complete ? counts_.checkpoints : counts_.checkpoints_failed);
  if (is_complete) checkpoint_at_ = now;
}

// The first step that this coordinator hears of need not have begun now.
void Tally::OnTick(int64_t begun_step, absl::Time now) {
  rate_.Note(now, begun_step);
  if (step_.has_value() && begun_step > *step_) step_at_ = now;
  step_ = begun_step;
  if (now - paces_at_ < kPacesInterval) return;
  paces_at_ = now;
  paces_.Update(now);
}

void Tally::Fill(JobStatus& status, absl::Time now) const {
  status.steps.per_second = rate_.PerSecond();
  status.steps.since_begun = now - step_at_;
  status.checkpoint.since = now - checkpoint_at_;
  status.counts = counts_;
  for (JobStatus::Member& member : status.members) {
    member.pace = paces_.PaceOf(member.id);
    member.late_total = paces_.LateTotal(member.id);
  }
}

}  // namespace nereus
