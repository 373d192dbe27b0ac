#include "worker/client/round_table.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"

namespace nereus {

RoundTable::RoundTable(const std::vector<std::string>& layers)
    : ledger_(layers), entries_(layers.size()) {}

absl::StatusOr<RoundTable::Push> RoundTable::BeginPush(
    int layer, int64_t step, absl::Time now, absl::Span<const float> gradient,
    absl::Span<const Lent> lent) {
  Push push;
  Entry* entry = nullptr;
  {
    MutexLock lock(&mu_);
    push.pushed = NEREUS_TRY(ledger_.BeginPush(layer, step));
    entry = &entries_[layer];
    // From now on the mean of the last round is no longer valid.
    entry->pushed_at = now;
    entry->gradient = gradient;
    entry->mean = Buffer();
    entry->has_mean = false;
    for (const Lent& memory : lent) {
      entry->borrowed += memory.values.empty() ? 0 : 1;
    }
  }
  for (size_t i = 0; i < lent.size(); ++i) {
    if (lent[i].values.empty()) continue;
    push.buffers[i] = Counted(&entry->borrowed, lent[i]);
  }
  return push;
}

StepLedger::Done RoundTable::Finish(int layer, int64_t round, bool skipped,
                                    absl::Time now, Buffer mean) {
  MutexLock lock(&mu_);
  const bool was_skipped = ledger_.Skipped(round);
  const StepLedger::Done done = ledger_.Finish(layer, round, skipped);
  if (!was_skipped && ledger_.Skipped(round)) ++counts_.skipped_steps;
  // The round was done before, so the caller may be using its mean.
  if (done == StepLedger::Done::kAgain) return done;
  Entry& entry = entries_[layer];
  if (done == StepLedger::Done::kRound) {
    entry.cost.latency_total += now - entry.pushed_at;
    ++entry.cost.rounds;
  }
  entry.mean = std::move(mean);
  entry.has_mean = done == StepLedger::Done::kRound;
  return done;
}

absl::Span<const float> RoundTable::Mean(int layer) const {
  MutexLock lock(&mu_);
  if (!ledger_.CheckLayer(layer).ok()) return {};
  const Entry& entry = entries_[layer];
  if (!entry.has_mean) return {};
  if (entry.mean.bytes() == 0) return entry.gradient;
  return {entry.mean.floats(), static_cast<size_t>(entry.mean.float_count())};
}

void RoundTable::NoteUnfit(int64_t step) {
  MutexLock lock(&mu_);
  ledger_.NoteUnfit(step);
  ++counts_.unfit_gradients;
}

absl::StatusOr<std::optional<StepLedger::Call>> RoundTable::BeginLeave(
    absl::Time now) {
  MutexLock lock(&mu_);
  auto last = ledger_.BeginLeave();
  if (last.ok() && last->has_value()) heard_at_ = now;
  return last;
}

void RoundTable::NoteWaiting() {
  const absl::Time now = SteadyNow();
  MutexLock lock(&mu_);
  heard_at_ = now;
}

// Does not look at parameters and states, which are borrowed for life.
bool RoundTable::IsReturned() const {
  return absl::c_all_of(entries_,
                        [](const Entry& entry) { return entry.borrowed == 0; });
}

absl::Status RoundTable::Acknowledge(absl::Time until) {
  MutexLock lock(&mu_);
  const bool in_time = mu_.AwaitWithTimeout(
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return !ledger_.failure().ok() || !ledger_.is_interrupted() ||
               IsReturned();
      },
      until - SteadyNow());
  if (!in_time) {
    return DeadlineExceededError(
        "the job goes back, and gradients of this worker are still in use");
  }
  ledger_.Acknowledge();
  for (Entry& entry : entries_) entry.has_mean = false;
  return ledger_.failure();
}

absl::Status RoundTable::AwaitFirstValues(absl::Time until) const {
  MutexLock lock(&mu_);
  const bool in_time = mu_.AwaitWithTimeout(
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return ledger_.is_interrupted() || ledger_.HasFirstValues();
      },
      until - SteadyNow());
  NEREUS_TRY(ledger_.Interruption());
  if (in_time) return absl::OkStatus();
  return DeadlineExceededError(
      "the job's values have not come yet: the job waits for members, or "
      "begins an epoch");
}

// HasBegun is also true if the step will not begin; Interruption says why.
absl::StatusOr<StepInfo> RoundTable::AwaitBegin(int64_t step,
                                                absl::Time until) {
  MutexLock lock(&mu_);
  const bool in_time = mu_.AwaitWithTimeout(
      [&]()
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ledger_.HasBegun(step); },
      until - SteadyNow());
  NEREUS_TRY(ledger_.Interruption());
  if (in_time) return ledger_.TakeBegun();
  return DeadlineExceededError(
      "step ", step,
      " has not begun yet: the job begins an epoch, or waits "
      "for slower workers");
}

absl::StatusOr<std::optional<Gather>> RoundTable::BeginGathering(
    std::string value) {
  MutexLock lock(&mu_);
  NEREUS_TRY(ledger_.StepToBegin());
  return ledger_.gathering().Begin(ledger_.pushed_step(), std::move(value));
}

absl::StatusOr<std::vector<std::string>> RoundTable::AwaitGathered(
    absl::Time until) {
  MutexLock lock(&mu_);
  const bool in_time = mu_.AwaitWithTimeout(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return ledger_.gathering().is_answered() || ledger_.is_interrupted();
      },
      until - SteadyNow());
  NEREUS_TRY(ledger_.Interruption());
  if (in_time) return ledger_.gathering().Take();
  return DeadlineExceededError(
      "the values of other workers have not come: they have not gathered yet");
}

absl::Status RoundTable::Await(int layer, int64_t round, absl::Duration timeout,
                               absl::Time from) const {
  MutexLock lock(&mu_);
  NEREUS_TRY(ledger_.CheckAwaited(layer, round));
  // A round can be done while a connection still reads the gradient.
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ledger_.is_interrupted() ||
           (ledger_.IsDone(layer, round) && entries_[layer].borrowed == 0);
  };
  const bool in_time =
      mu_.AwaitWithTimeout(is_over, from + timeout - SteadyNow());
  NEREUS_TRY(ledger_.Interruption());
  if (in_time) return absl::OkStatus();
  const absl::Duration rounded =
      absl::Trunc(timeout + absl::Microseconds(500), absl::Milliseconds(1));
  return DeadlineExceededError("layer ", ledger_.name(layer), ": step ", round,
                               " is not done after ",
                               absl::FormatDuration(rounded));
}

absl::Status RoundTable::AwaitOver(absl::Duration patience,
                                   absl::Time until) const {
  MutexLock lock(&mu_);
  // Each message Waiting of the coordinator begins the patience anew.
  while (true) {
    const absl::Time heard_at = heard_at_;
    const absl::Time lost_at = heard_at + patience;
    const bool in_time = mu_.AwaitWithTimeout(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return ledger_.is_interrupted() || ledger_.is_over() ||
                 heard_at_ != heard_at;
        },
        std::min(lost_at, until) - SteadyNow());
    NEREUS_TRY(ledger_.Interruption());
    if (ledger_.is_over()) return absl::OkStatus();
    if (in_time) continue;
    if (lost_at <= until) return UnavailableError("the coordinator is silent");
    return DeadlineExceededError("not over");
  }
}

bool RoundTable::AwaitReturned(absl::Duration timeout) const {
  MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return borrowed_for_life_ == 0 && IsReturned();
      },
      timeout);
}

Buffer RoundTable::BorrowForLife(absl::Span<float> values,
                                 std::shared_ptr<Arrival> arrival) {
  if (values.empty()) return Buffer();
  int* borrowed = nullptr;
  {
    MutexLock lock(&mu_);
    borrowed = &borrowed_for_life_;
    ++*borrowed;
  }
  return Counted(borrowed, {values, std::move(arrival)});
}

// The buffer's last reference can be dropped on any thread, and after the
// client is gone. So the buffer owns the table, too.
Buffer RoundTable::Counted(int* borrowed, const Lent& lent) {
  return Buffer::Borrow(
      const_cast<float*>(lent.values.data()),
      static_cast<int64_t>(lent.values.size() * sizeof(float)),
      [table = shared_from_this(), borrowed] {
        MutexLock lock(&table->mu_);
        --*borrowed;
      },
      lent.arrival);
}

RoundTable::Cost RoundTable::cost(int layer) const {
  MutexLock lock(&mu_);
  return entries_[layer].cost;
}

std::vector<absl::Duration> RoundTable::TakeSyncTimes() {
  MutexLock lock(&mu_);
  std::vector<absl::Duration> times;
  for (Entry& entry : entries_) {
    const Cost before = std::exchange(entry.taken, entry.cost);
    const int64_t rounds = entry.cost.rounds - before.rounds;
    const absl::Duration total =
        entry.cost.latency_total - before.latency_total;
    times.push_back(
        std::min(total / std::max<int64_t>(1, rounds), kComputeTimeMax));
  }
  return times;
}

RoundTable::Counts RoundTable::counts() const {
  MutexLock lock(&mu_);
  return counts_;
}

}  // namespace nereus
