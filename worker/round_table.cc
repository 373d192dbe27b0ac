#include "worker/round_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace nereus {

RoundTable::RoundTable(JobPtr job)
    : job_(std::move(job)), entries_(job_->layers.size()) {}

absl::Status RoundTable::CheckLayer(int layer) const {
  if (layer >= 0 && layer < static_cast<int>(job_->layers.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no layer ", layer, ": the model has ", job_->layers.size()));
}

absl::Status RoundTable::BeginPush(int layer, int64_t step, absl::Time now) {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  MutexLock lock(&mu_);
  NEREUS_RETURN_IF_ERROR(failure_);
  Entry& entry = entries_[layer];
  if (entry.pushed != entry.done || step != entry.done + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", job_->layers[layer].name, ": step ", step,
                     " is pushed after step ", entry.pushed, "; steps up to ",
                     entry.done, " are done, and they come one by one"));
  }
  entry.pushed = step;
  entry.pushed_at = now;
  return absl::OkStatus();
}

Buffer RoundTable::Borrow(int layer, const float* values, size_t count) {
  if (count == 0) return Buffer();
  {
    MutexLock lock(&mu_);
    ++entries_[layer].borrowed;
  }
  return Buffer::Borrow(const_cast<float*>(values),
                        static_cast<int64_t>(count * sizeof(float)),
                        [table = shared_from_this(), layer] {
                          MutexLock lock(&table->mu_);
                          --table->entries_[layer].borrowed;
                        });
}

Buffer RoundTable::LendParameters(absl::Span<float> parameters) {
  {
    MutexLock lock(&mu_);
    ++lent_;
  }
  return Buffer::Borrow(parameters.data(),
                        static_cast<int64_t>(parameters.size() * sizeof(float)),
                        [table = shared_from_this()] {
                          MutexLock lock(&table->mu_);
                          --table->lent_;
                        });
}

void RoundTable::Finish(int layer, int64_t round, absl::Time now) {
  MutexLock lock(&mu_);
  Entry& entry = entries_[layer];
  entry.done = round;
  if (round > kInitialRound) entry.latency_total += now - entry.pushed_at;
}

void RoundTable::Fail(const absl::Status& failure) {
  MutexLock lock(&mu_);
  failure_.Update(failure);
}

absl::Status RoundTable::failure() const {
  MutexLock lock(&mu_);
  return failure_;
}

absl::Status RoundTable::Await(int layer, int64_t round,
                               absl::Duration timeout) const {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  MutexLock lock(&mu_);
  NEREUS_RETURN_IF_ERROR(failure_);
  const Entry& entry = entries_[layer];
  if (round > entry.pushed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", job_->layers[layer].name, ": step ", round,
        " is waited for, step ", entry.pushed, " was the last to be pushed"));
  }
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !failure_.ok() || (entry.done >= round && entry.borrowed == 0);
  };
  const bool in_time = mu_.AwaitWithTimeout(over, timeout);
  NEREUS_RETURN_IF_ERROR(failure_);
  if (in_time) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("layer ", job_->layers[layer].name, ": step ", round,
                   " is not done after ", absl::FormatDuration(timeout)));
}

bool RoundTable::AwaitReturned(absl::Duration timeout) const {
  MutexLock lock(&mu_);
  const auto returned = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return lent_ == 0 &&
           std::all_of(entries_.begin(), entries_.end(),
                       [](const Entry& entry) { return entry.borrowed == 0; });
  };
  return mu_.AwaitWithTimeout(returned, timeout);
}

int64_t RoundTable::round() const {
  MutexLock lock(&mu_);
  int64_t round = entries_.front().done;
  for (const Entry& entry : entries_) round = std::min(round, entry.done);
  return std::max(round, kInitialRound);
}

RoundTable::Cost RoundTable::cost(int layer) const {
  MutexLock lock(&mu_);
  const Entry& entry = entries_[layer];
  return {std::max<int64_t>(entry.done + 1, 0), entry.latency_total};
}

}  // namespace nereus
