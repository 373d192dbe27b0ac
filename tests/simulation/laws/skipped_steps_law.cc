#include "tests/simulation/laws/skipped_steps_law.h"

#include <variant>

#include "absl/strings/str_cat.h"

namespace nereus {

void SkippedStepsLaw::Observe(const ClusterEvent& event) {
  if (const auto* done = std::get_if<RoundDone>(&event)) OnRoundDone(*done);
  const auto* epoch = std::get_if<EpochBegun>(&event);
  if (epoch == nullptr || !epoch->all_from_base) return;
  // Steps that are done again may have another verdict.
  verdicts_.erase(verdicts_.upper_bound(epoch->job->history.base_round),
                  verdicts_.end());
}

void SkippedStepsLaw::OnRoundDone(const RoundDone& done) {
  const LayerPlace& at = done.place;
  const Job& job = view().job();
  if (done.is_first || job.PositionOf(at.rank) < 0) return;
  const Heard now = {at.rank, done.skipped};
  Heard& heard = verdicts_.try_emplace(at.round, now).first->second;
  // A worker that has left the job may have heard another verdict than the
  // workers of the job. Their verdict counts.
  if (job.PositionOf(heard.rank) < 0) heard = now;
  if (heard.skipped == done.skipped) return;
  const auto verdict = [](bool skipped) {
    return skipped ? "has skipped the step" : "has done the step";
  };
  Breach(PlaceOf(at),
         absl::StrCat("worker ", at.rank, " ", verdict(done.skipped),
                      ", worker ", heard.rank, " ", verdict(heard.skipped)));
}

}  // namespace nereus
