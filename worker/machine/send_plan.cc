#include "worker/machine/send_plan.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/plan/scheme.h"

namespace nereus {
namespace {

// Bytes that a worker sends of its gradient of a layer.
int64_t BytesSent(const Job& job, int layer, int64_t round) {
  const LayerSpec& spec = job.layers[layer];
  const Route& route = job.routes[layer];
  const int64_t values = route.scheme == Scheme::kFactor
                             ? spec.rows * (spec.m + spec.n)
                             : spec.parameters;
  const int64_t bytes = values * WireBytes(route.wire);
  if (!job.IsSparse(layer)) return bytes;
  const double share = static_cast<double>(job.BlocksIn(round)) /
                       static_cast<double>(job.block_count());
  return static_cast<int64_t>(static_cast<double>(bytes) * share);
}

}  // namespace

SendPlan::SendPlan(JobPtr job, const std::vector<RoundLedger>& ledgers)
    : job_(std::move(job)),
      ledgers_(ledgers),
      fusion_bytes_(job_->options.fusion_bytes) {}

void SendPlan::EndStep() { is_hurried_ = !deferred_.empty(); }

void SendPlan::OnPush(int layer, int64_t step, bool fit) {
  if (step != step_) {
    step_ = step;
    pushed_count_ = 0;
    is_fit_ = true;
    is_vote_due_ = false;
  }
  ++pushed_count_;
  is_fit_ = is_fit_ && fit;
  deferred_.push_back(layer);
  deferred_bytes_ += BytesSent(*job_, layer, step);
  is_vote_due_ = has_pushed_all();
}

void SendPlan::OnHurry(int layer) {
  is_hurried_ = is_hurried_ || absl::c_linear_search(deferred_, layer);
}

void SendPlan::OnEpoch(JobPtr job) {
  const JobPtr before = std::exchange(job_, std::move(job));
  if (job_->options.fusion_bytes != before->options.fusion_bytes) {
    fusion_bytes_ = job_->options.fusion_bytes;
  }
  is_frozen_ = false;
  is_vote_due_ = has_pushed_all();  // Votes of the last epoch are forgotten.
}

bool SendPlan::awaits_choice() const {
  return job_->pool.layer >= 0 &&
         ledgers_[job_->pool.layer].done_round() < step_ - 1;
}

bool SendPlan::IsUrgent() const {
  if (has_pushed_all()) return true;
  if (job_->options.overlap != Overlap::kNone &&
      deferred_bytes_ >= fusion_bytes_) {
    return true;
  }
  return is_hurried_;
}

std::vector<int> SendPlan::TakeSends() {
  if (IsGated() || !IsUrgent()) return {};
  deferred_bytes_ = 0;
  is_hurried_ = false;
  return std::exchange(deferred_, {});
}

std::optional<SendPlan::Vote> SendPlan::TakeVote() {
  if (IsGated() || !std::exchange(is_vote_due_, false)) return std::nullopt;
  return Vote{step_, is_fit_};
}

}  // namespace nereus
