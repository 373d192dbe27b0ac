#include "common/protocol/verdicts.h"

#include "absl/algorithm/container.h"

namespace nereus {

void Verdicts::Add(absl::Span<const StepVerdict> verdicts) {
  for (const StepVerdict& verdict : verdicts) {
    const auto place = absl::c_lower_bound(
        verdicts_, verdict,
        [](const auto& a, const auto& b) { return a.step < b.step; });
    // The known verdict stays: the member may already have skipped the step or
    // applied its update.
    if (place != verdicts_.end() && place->step == verdict.step) continue;
    verdicts_.insert(place, verdict);
  }
  if (verdicts_.size() > kVerdictsMax) {
    verdicts_.erase(verdicts_.begin(), verdicts_.end() - kVerdictsMax);
  }
}

std::optional<bool> Verdicts::Skipped(int64_t step) const {
  for (const StepVerdict& verdict : verdicts_) {
    if (verdict.step == step) return verdict.skipped;
  }
  return std::nullopt;
}

}  // namespace nereus
