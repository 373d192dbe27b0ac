#include "tests/simulation/laws/unchanged_parameters_law.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace nereus {

void UnchangedParametersLaw::Observe(const ClusterEvent& event) {
  if (const auto* done = std::get_if<RoundDone>(&event)) OnRoundDone(*done);
  if (const auto* fetched = std::get_if<FetchedAgain>(&event)) {
    OnFetchedAgain(*fetched);
  }
}

uint32_t UnchangedParametersLaw::Exchange(const LayerPlace& place,
                                          uint32_t checksum) {
  return std::exchange(checksums_[{place.process, place.layer}], checksum);
}

void UnchangedParametersLaw::OnRoundDone(const RoundDone& done) {
  const uint32_t now = done.parameters.checksum;
  const uint32_t before = Exchange(done.place, now);
  // If the worker runs the optimizer, this event comes before the update of its
  // step. The update of the step before lies between the two checksums, so they
  // may differ.
  const bool updates_here =
      done.place.job->options.optimizer_place == OptimizerPlace::kWorker;
  if (done.is_first || !done.skipped || updates_here || now == before) return;
  // A worker outside the coordinator's job may have missed the verdict.
  if (view().job().PositionOf(done.place.rank) < 0) return;
  Breach(
      PlaceOf(done.place),
      absl::StrCat("a skipped step changes parameters: checksum ",
                   absl::Hex(before), " before, ", absl::Hex(now), " after"));
}

// A worker that runs the optimizer fetches no layer again (Syncer::Adopt). So
// no update of its own lies between the two checksums.
void UnchangedParametersLaw::OnFetchedAgain(const FetchedAgain& fetched) {
  const uint32_t now = fetched.parameters.checksum;
  const uint32_t before = Exchange(fetched.place, now);
  if (now == before || is_rounded_) return;
  Breach(
      PlaceOf(fetched.place),
      absl::StrCat("another plan begins with other parameters: checksum ",
                   absl::Hex(before), " before, ", absl::Hex(now), " after"));
}

}  // namespace nereus
