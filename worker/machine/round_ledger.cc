#include "worker/machine/round_ledger.h"

#include <utility>

#include "common/base/status.h"

namespace nereus {

int64_t RoundLedger::next_round() const {
  // A worker that has left the epoch while it fetched has no first step.
  const int position = fetching() ? job_->PositionOf(rank_) : -1;
  return position >= 0 ? job_->workers[position].first_step : done_round_ + 1;
}

absl::Status RoundLedger::CheckPush(int64_t round) const {
  if (!fetching() && !is_open() && round == done_round_ + 1) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("layer ", job_->layers[layer_].name, ": step ",
                              round, " is pushed after step ", pushed_round_,
                              ", of which steps up to ", done_round_,
                              " are done; steps must follow one another");
}

void RoundLedger::Push(int64_t round) {
  pushed_round_ = round;
  is_unsent_ = true;
}

bool RoundLedger::Send() { return std::exchange(is_unsent_, false); }

void RoundLedger::Finish(int contributors, Buffer mean) {
  ++done_round_;
  contributors_ = contributors;
  mean_ = std::move(mean);
  is_reported_ = false;
}

void RoundLedger::OnFetched(int64_t round) {
  pushed_round_ = round;
  done_round_ = round - 1;
  Finish(/*contributors=*/0, Buffer());
}

void RoundLedger::OnReroute() {
  pushed_round_ = done_round_;
  is_unsent_ = false;
  is_reported_ = true;
  mean_ = Buffer();
}

void RoundLedger::Restart() {
  pushed_round_ = kInitialRound - 1;
  done_round_ = kInitialRound - 1;
}

void RoundLedger::ReportIfSettled(Outbox& out) {
  if (is_reported_) return;
  // Fetched values are of a step that other workers have done, so its verdict
  // has been given.
  const std::optional<bool> skipped =
      contributors_ == 0 ? false : Skipped(done_round_);
  if (!skipped.has_value()) return;
  is_reported_ = true;
  if (layer_ == job_->pool.layer) return;  // Not the caller's.
  out.Add(
      LayerDone{layer_, done_round_, *skipped, std::exchange(mean_, Buffer())});
}

}  // namespace nereus
