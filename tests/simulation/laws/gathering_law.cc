#include "tests/simulation/laws/gathering_law.h"

#include <iterator>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {

void GatheringLaw::Observe(const ClusterEvent& event) {
  if (const auto* begun = std::get_if<EpochBegun>(&event)) {
    if (begun->all_from_base) returns_.insert(begun->job->epoch);
    return;
  }
  const auto* gathered = std::get_if<WorkerGathered>(&event);
  if (gathered == nullptr) return;
  const Gathered& answer = gathered->answer;
  const Place place = {-1, answer.id.step, gathered->rank};
  if (!answer.error.empty()) return Breach(place, answer.error);
  // A worker that joined later gets what the first workers gathered.
  const bool has_own =
      answer.id.step != kInitialRound || answer.id.went_back_in > 0;
  if (has_own && absl::c_count(answer.values, gathered->value) != 1) {
    return Breach(place,
                  absl::StrCat("value ", gathered->value, " is not once among ",
                               absl::StrJoin(answer.values, ", ")));
  }
  const uint64_t last_return =
      *std::prev(returns_.upper_bound(gathered->epoch));
  const auto [first, is_first] =
      values_.emplace(std::pair(last_return, answer.id), answer.values);
  if (first->second == answer.values) return;
  Breach(place,
         absl::StrCat("the values are ", absl::StrJoin(answer.values, ", "),
                      ", another worker got ",
                      absl::StrJoin(first->second, ", ")));
}

}  // namespace nereus
