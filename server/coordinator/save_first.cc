#include "server/coordinator/save_first.h"

#include <utility>
#include <variant>

namespace nereus {
namespace {

// Least time between a failed save and the next try.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(200);

}  // namespace

// The owner may call Clear from within `save` or `carry_out`.
void SaveFirst::CarryOut(
    CoordinatorOutbox out, absl::Time now,
    absl::FunctionRef<absl::Status(const CoordinatorState&)> save,
    absl::FunctionRef<void(const CoordinatorAction&)> carry_out) {
  for (CoordinatorAction& action : out) {
    if (std::holds_alternative<Announce>(action)) {
      carry_out(action);
    } else {
      held_.push_back(std::move(action));
    }
  }
  if (failing_since_.has_value() && now - tried_at_ < kRetryInterval) return;
  while (!held_.empty()) {
    if (const auto* state = std::get_if<SaveState>(&held_.front())) {
      absl::Status saved = save(state->state);
      if (held_.empty()) return;  // The owner has called Clear.
      if (!saved.ok()) {
        if (!failing_since_.has_value()) failing_since_ = now;
        tried_at_ = now;
        failure_ = std::move(saved);
        return;
      }
      failing_since_.reset();
    }
    // The action leaves the queue first, because `carry_out` may call Clear.
    const CoordinatorAction action = std::move(held_.front());
    held_.pop_front();
    if (!std::holds_alternative<SaveState>(action)) carry_out(action);
  }
}

void SaveFirst::Clear() {
  held_.clear();
  failing_since_.reset();
}

absl::Duration SaveFirst::failing_for(absl::Time now) const {
  return failing_since_.has_value() ? now - *failing_since_
                                    : absl::ZeroDuration();
}

}  // namespace nereus
