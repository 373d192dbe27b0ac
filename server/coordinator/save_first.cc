#include "server/coordinator/save_first.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// Least time between a failed save and the next try.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(200);

}  // namespace

void SaveFirst::Add(CoordinatorOutbox out) {
  std::stable_partition(out.begin(), out.end(), [](const auto& action) {
    return !std::holds_alternative<Announce>(action);
  });
  for (CoordinatorAction& action : out) {
    if (auto* const save = std::get_if<SaveState>(&action)) {
      newest_ =
          std::make_shared<const CoordinatorState>(std::move(save->state));
      ++asked_;
    } else {
      held_.push_back({asked_, std::move(action)});
    }
  }
}

std::optional<CoordinatorAction> SaveFirst::Next() {
  if (held_.empty() || held_.front().state > saved_) return std::nullopt;
  CoordinatorAction action = std::move(held_.front().action);
  held_.pop_front();
  return action;
}

std::shared_ptr<const CoordinatorState> SaveFirst::BeginSave(absl::Time now) {
  if (saved_ == asked_ || saving_ != 0) return nullptr;
  if (!failure_.ok() && now - failed_at_ < kRetryInterval) return nullptr;
  if (!unsaved_since_.has_value()) unsaved_since_ = now;
  saving_ = asked_;
  return newest_;
}

void SaveFirst::OnSaved(absl::Status outcome, absl::Time now) {
  const int64_t state = std::exchange(saving_, 0);
  failure_ = std::move(outcome);
  if (!failure_.ok()) {
    failed_at_ = now;
    return;
  }
  saved_ = state;
  unsaved_since_.reset();
  if (saved_ == asked_) newest_.reset();
}

int64_t SaveFirst::messages() const {
  return absl::c_count_if(held_, [](const Held& held) {
    return std::holds_alternative<SendToMember>(held.action);
  });
}

absl::Duration SaveFirst::unsaved_for(absl::Time now) const {
  return unsaved_since_.has_value() ? now - *unsaved_since_
                                    : absl::ZeroDuration();
}

}  // namespace nereus
