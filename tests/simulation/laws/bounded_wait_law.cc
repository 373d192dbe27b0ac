#include "tests/simulation/laws/bounded_wait_law.h"

#include <algorithm>
#include <variant>

#include "common/base/status.h"

namespace nereus {
namespace {

// Time that a recovery takes beside a lease: a member may resume its session,
// another server starts, and values are sent again.
constexpr absl::Duration kRecovery = absl::Seconds(4);

}  // namespace

BoundedWaitLaw::BoundedWaitLaw(absl::Duration lease)
    : wait_max_(lease + kRecovery) {}

void BoundedWaitLaw::Observe(const ClusterEvent& event) {
  if (std::holds_alternative<StepDone>(event) ||
      std::holds_alternative<Admitted>(event) ||
      std::holds_alternative<RunBegins>(event)) {
    progress_at_ = view().now();
  } else if (std::holds_alternative<Disturbed>(event)) {
    disturbed_at_ = view().now();
  }
}

absl::Status BoundedWaitLaw::CheckTime(absl::Time now) const {
  const absl::Time since = std::max(progress_at_, disturbed_at_);
  if (now - progress_at_ <= patience_ && now - since <= wait_max_) {
    return absl::OkStatus();
  }
  return DeadlineExceededError(
      "law broken: ", name(), ": at ",
      absl::FormatDuration(now - absl::UnixEpoch()), " no step has ended for ",
      absl::FormatDuration(now - progress_at_), ", at most ",
      absl::FormatDuration(patience_),
      " are right, and no fault has struck for ",
      absl::FormatDuration(now - disturbed_at_), ", at most ",
      absl::FormatDuration(wait_max_), " are right");
}

}  // namespace nereus
