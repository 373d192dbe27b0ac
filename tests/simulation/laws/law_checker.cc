#include "tests/simulation/laws/law_checker.h"

#include <utility>

#include "common/base/status.h"

namespace nereus {

LawChecker::LawChecker(uint64_t seed, std::vector<LayerSpec> layers,
                       const ClusterView* view)
    : seed_(seed), layers_(std::move(layers)), view_(view) {}

void LawChecker::Bind(Law& law) {
  law.Bind(view_,
           [this](const Law& from, const Place& place,
                  const std::string& what) { OnBreach(from, place, what); });
}

void LawChecker::Tell(const ClusterEvent& event) {
  for (const auto& law : laws_) law->Observe(event);
}

absl::Status LawChecker::CheckTime() const {
  for (const auto& law : laws_) {
    const absl::Status in_time = law->CheckTime(view_->now());
    if (in_time.ok()) continue;
    return Prefixed(in_time, "seed ", seed_, ": ");
  }
  return absl::OkStatus();
}

// Keeps the first breach only: its consequences may break other laws.
void LawChecker::OnBreach(const Law& law, const Place& place,
                          const std::string& what) {
  std::string text =
      absl::StrCat("law broken: ", law.name(), " (seed ", seed_, ", at ",
                   absl::FormatDuration(view_->now() - absl::UnixEpoch()));
  if (place.layer >= 0) {
    const auto layer = static_cast<size_t>(place.layer);
    absl::StrAppend(&text, ", layer ", layer, " ",
                    layer < layers_.size() ? layers_[layer].name : "");
  }
  if (place.round != Place::kNoRound) {
    absl::StrAppend(&text, ", round ", place.round);
  }
  if (place.rank >= 0) absl::StrAppend(&text, ", worker ", place.rank);
  status_.Update(InternalError(text, "): ", what));
}

}  // namespace nereus
