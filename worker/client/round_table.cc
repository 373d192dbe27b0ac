#include "worker/client/round_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace nereus {

RoundTable::RoundTable(std::vector<std::string> layers)
    : layers_(std::move(layers)), entries_(layers_.size()) {}

int64_t RoundTable::Restart() {
  MutexLock lock(&mu_);
  went_back_ = life_ > 0;
  begun_.reset();
  unfit_step_ = kInitialRound;
  loss_scale_.OnRestart();
  for (Entry& entry : entries_) {
    entry.pushed = kFetching;
    entry.done = kFetching;
  }
  return ++life_;
}

absl::Status RoundTable::Interruption() const {
  if (!failure_.ok() || !went_back_) return failure_;
  return absl::OutOfRangeError(
      "the job went back to an earlier step: call BeginStep, and do the step "
      "that it says");
}

absl::Status RoundTable::Acknowledge() {
  MutexLock lock(&mu_);
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !failure_.ok() || !went_back_ ||
           std::all_of(entries_.begin(), entries_.end(),
                       [](const Entry& entry) { return entry.borrowed == 0; });
  });
  went_back_ = false;
  return failure_;
}

absl::Status RoundTable::AwaitFirstValues() const {
  MutexLock lock(&mu_);
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !failure_.ok() || went_back_ ||
           std::all_of(
               entries_.begin(), entries_.end(),
               [](const Entry& entry) { return entry.done > kFetching; });
  });
  return Interruption();
}

int64_t RoundTable::next_step() const {
  MutexLock lock(&mu_);
  return NextStepLocked();
}

absl::StatusOr<RoundTable::StepOfLife> RoundTable::step_to_begin() const {
  MutexLock lock(&mu_);
  NEREUS_RETURN_IF_ERROR(Interruption());
  return StepOfLife{NextStepLocked(), life_};
}

int64_t RoundTable::NextStepLocked() const {
  return begun_.has_value() ? begun_->step + 1 : entries_.front().done + 1;
}

absl::StatusOr<RoundTable::StepOfLife> RoundTable::last_step() const {
  MutexLock lock(&mu_);
  NEREUS_RETURN_IF_ERROR(Interruption());
  StepOfLife last{kInitialRound, life_};
  for (const Entry& entry : entries_) {
    last.step = std::max(last.step, entry.pushed);
  }
  return last;
}

bool RoundTable::HasPushedAll() const {
  MutexLock lock(&mu_);
  return layers_pushed_ == layers_.size();
}

bool RoundTable::IsIdle() const {
  MutexLock lock(&mu_);
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.done == entry.pushed;
  });
}

void RoundTable::Begin(const StepInfo& step) {
  MutexLock lock(&mu_);
  begun_ = step;
  layers_pushed_ = 0;
}

absl::StatusOr<StepInfo> RoundTable::AwaitBegin(int64_t step) const {
  MutexLock lock(&mu_);
  mu_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return HasBegunLocked(step);
  });
  NEREUS_RETURN_IF_ERROR(Interruption());
  return *begun_;
}

bool RoundTable::HasBegunLocked(int64_t step) const {
  return !failure_.ok() || went_back_ ||
         (begun_.has_value() && begun_->step >= step);
}

bool RoundTable::HasBegun(int64_t step) const {
  MutexLock lock(&mu_);
  return HasBegunLocked(step);
}

absl::Status RoundTable::CheckLayer(int layer) const {
  if (layer >= 0 && layer < static_cast<int>(layers_.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no layer ", layer, ": the model has ", layers_.size()));
}

absl::Status RoundTable::CheckStep(const Entry& entry, int layer,
                                   int64_t step) const {
  if (!begun_.has_value() || step != begun_->step) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layers_[layer], ": step ", step, " is pushed, ",
        begun_.has_value() ? absl::StrCat("step ", begun_->step) : "none",
        " was begun"));
  }
  if (entry.pushed == entry.done && step == entry.done + 1) {
    return absl::OkStatus();
  }
  if (entry.pushed > entry.done && step == entry.pushed + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layers_[layer], ": step ", step, " is pushed, but step ",
        entry.pushed,
        " is not waited for: Wait or WaitAll comes before the next push"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layers_[layer], ": step ", step,
                   " is pushed after step ", entry.pushed, "; steps up to ",
                   entry.done, " are done, and they come one by one"));
}

absl::StatusOr<RoundTable::Pushed> RoundTable::BeginPush(
    int layer, int64_t step, absl::Time now, absl::Span<const float> gradient) {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  MutexLock lock(&mu_);
  NEREUS_RETURN_IF_ERROR(Interruption());
  Entry& entry = entries_[layer];
  NEREUS_RETURN_IF_ERROR(CheckStep(entry, layer, step));
  entry.pushed = step;
  entry.pushed_at = now;
  entry.gradient = gradient;
  entry.mean = Buffer();
  ++layers_pushed_;
  return Pushed{life_, begun_->loss_scale};
}

Buffer RoundTable::Borrow(int layer, const float* values, size_t count,
                          std::shared_ptr<Arrival> arrival) {
  if (count == 0) return Buffer();
  {
    MutexLock lock(&mu_);
    ++entries_[layer].borrowed;
  }
  return Buffer::Borrow(
      const_cast<float*>(values), static_cast<int64_t>(count * sizeof(float)),
      [table = shared_from_this(), layer] {
        MutexLock lock(&table->mu_);
        --table->entries_[layer].borrowed;
      },
      std::move(arrival));
}

Buffer RoundTable::Lend(absl::Span<float> values,
                        std::shared_ptr<Arrival> arrival) {
  if (values.empty()) return Buffer();
  {
    MutexLock lock(&mu_);
    ++lent_;
  }
  return Buffer::Borrow(
      values.data(), static_cast<int64_t>(values.size() * sizeof(float)),
      [table = shared_from_this()] {
        MutexLock lock(&table->mu_);
        --table->lent_;
      },
      std::move(arrival));
}

absl::Status RoundTable::CheckComplete(bool or_untouched) const {
  MutexLock lock(&mu_);
  const bool complete = !begun_.has_value() ||
                        layers_pushed_ == layers_.size() ||
                        (or_untouched && layers_pushed_ == 0);
  if (complete || went_back_ || !failure_.ok()) return absl::OkStatus();
  std::string missing;
  for (size_t layer = 0; layer < entries_.size(); ++layer) {
    if (entries_[layer].pushed == begun_->step) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", layers_[layer]);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "step ", begun_->step, " is not complete: no gradient was pushed of ",
      missing, ". Push every layer in each step; a frozen layer pushes zeros"));
}

void RoundTable::NoteUnfit(int64_t step) {
  MutexLock lock(&mu_);
  unfit_step_ = step;
}

float RoundTable::loss_scale() const {
  MutexLock lock(&mu_);
  return loss_scale_.value();
}

bool RoundTable::Skipped(int64_t step) const {
  MutexLock lock(&mu_);
  return skipped_ == step;
}

absl::Span<const float> RoundTable::Mean(int layer) const {
  if (!CheckLayer(layer).ok()) return {};
  MutexLock lock(&mu_);
  const Entry& entry = entries_[layer];
  if (entry.mean.bytes() == 0) return entry.gradient;
  return {entry.mean.floats(), static_cast<size_t>(entry.mean.float_count())};
}

void RoundTable::Finish(int layer, int64_t round, bool skipped, absl::Time now,
                        Buffer mean) {
  MutexLock lock(&mu_);
  Entry& entry = entries_[layer];
  if (round <= entry.done) return;  // Fetched again, for another plan.
  // The job may have gone back, and be there again.
  if (skipped) {
    skipped_ = round;
  } else if (skipped_ == round) {
    skipped_ = kInitialRound;
  }
  if (entry.done == kFetching) {
    entry.pushed = round;
  } else {
    loss_scale_.OnStep(round, skipped, unfit_step_ == round);
    entry.latency_total += now - entry.pushed_at;
    ++entry.rounds;
  }
  entry.done = round;
  entry.mean = std::move(mean);
}

void RoundTable::End(const absl::Status& outcome) {
  MutexLock lock(&mu_);
  failure_.Update(outcome);
  over_ = true;
}

void RoundTable::NoteWaiting() {
  MutexLock lock(&mu_);
  ++waits_heard_;
}

absl::Status RoundTable::AwaitOver(absl::Duration timeout) {
  MutexLock lock(&mu_);
  while (true) {
    const int64_t heard = waits_heard_;
    const bool in_time = mu_.AwaitWithTimeout(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return !failure_.ok() || over_ || went_back_ || waits_heard_ != heard;
        },
        timeout);
    NEREUS_RETURN_IF_ERROR(Interruption());
    if (over_) return absl::OkStatus();
    if (!in_time) return absl::DeadlineExceededError("not over");
  }
}

void RoundTable::Fail(const absl::Status& failure) {
  MutexLock lock(&mu_);
  failure_.Update(failure);
}

absl::Status RoundTable::failure() const {
  MutexLock lock(&mu_);
  return failure_;
}

int64_t RoundTable::pushed(int layer) const {
  MutexLock lock(&mu_);
  return entries_[layer].pushed;
}

bool RoundTable::IsDone(int layer, int64_t round) const {
  MutexLock lock(&mu_);
  return !CheckLayer(layer).ok() || entries_[layer].done >= round;
}

bool RoundTable::IsSettled(int layer, int64_t round) const {
  if (!CheckLayer(layer).ok()) return true;
  MutexLock lock(&mu_);
  const Entry& entry = entries_[layer];
  return !failure_.ok() || went_back_ || round > entry.pushed ||
         entry.done >= round;
}

absl::Status RoundTable::Await(int layer, int64_t round, absl::Duration timeout,
                               absl::Time from) const {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  MutexLock lock(&mu_);
  NEREUS_RETURN_IF_ERROR(Interruption());
  const Entry& entry = entries_[layer];
  if (round > entry.pushed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layers_[layer], ": step ", round, " is waited for, step ",
        entry.pushed, " was the last to be pushed"));
  }
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !failure_.ok() || went_back_ ||
           (entry.done >= round && entry.borrowed == 0);
  };
  const bool in_time = mu_.AwaitWithTimeout(over, from + timeout - SteadyNow());
  NEREUS_RETURN_IF_ERROR(Interruption());
  if (in_time) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("layer ", layers_[layer], ": step ", round,
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
  return {entry.rounds, entry.latency_total};
}

}  // namespace nereus
