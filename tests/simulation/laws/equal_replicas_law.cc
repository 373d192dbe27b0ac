#include "tests/simulation/laws/equal_replicas_law.h"

#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nereus {

void EqualReplicasLaw::Observe(const ClusterEvent& event) {
  if (const auto* done = std::get_if<RoundDone>(&event)) {
    // The mean of a skipped step may be anything: no worker uses it.
    const bool is_mean = done->mean.has_value();
    if (is_mean && done->skipped) return;
    Compare(done->place, is_mean,
            is_mean ? done->mean->checksum : done->parameters.checksum);
  } else if (const auto* update = std::get_if<ParametersUpdated>(&event)) {
    Compare(update->place, /*is_mean=*/false, update->parameters.checksum);
  } else if (const auto* fetched = std::get_if<FetchedAgain>(&event)) {
    Compare(fetched->place, /*is_mean=*/false, fetched->parameters.checksum);
  } else if (const auto* epoch = std::get_if<EpochBegun>(&event)) {
    OnEpoch(*epoch);
  }
}

void EqualReplicasLaw::Compare(const LayerPlace& place, bool is_mean,
                               uint32_t checksum) {
  const bool is_member = place.job->PositionOf(place.rank) >= 0;
  if (place.job->partial() || !is_member || !view().Counts(place.process)) {
    return;
  }
  const Recorded now = {place.process, place.rank, checksum};
  Recorded& recorded =
      results_.try_emplace(Key{is_mean, place.layer, place.round}, now)
          .first->second;
  // The result of a worker that counts no more binds no other worker.
  if (!view().Counts(recorded.process)) recorded = now;
  if (recorded.checksum == checksum) return;
  Breach(PlaceOf(place),
         absl::StrCat(is_mean ? "the mean gradient" : "parameters",
                      " of worker ", place.rank, " have checksum ",
                      absl::Hex(checksum), ", those of worker ", recorded.rank,
                      " ", absl::Hex(recorded.checksum)));
}

void EqualReplicasLaw::OnEpoch(const EpochBegun& epoch) {
  // Steps that are done again may give other bits than the first time.
  if (epoch.all_from_base) {
    std::erase_if(results_, [&](const auto& result) {
      return std::get<2>(result.first) > epoch.job->history.base_round;
    });
  }
  std::erase_if(results_, [&](const auto& result) {
    return absl::c_count(epoch.workers_from_base, result.second.rank) > 0;
  });
  const auto before = std::exchange(routes_, epoch.job->routes);
  if (before.empty()) return;
  std::erase_if(results_, [&](const auto& result) {
    const int layer = std::get<1>(result.first);
    return before[layer] != routes_[layer];
  });
}

}  // namespace nereus
