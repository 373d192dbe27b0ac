#include "tests/simulation/laws/counted_once_law.h"

#include <cmath>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

// Largest error of a share. A share is at most 1, and rounding to bf16 changes
// it by at most 2^-9. A share that is computed from a change of parameters is
// more exact, as parameters are below 2^5. A worker that counts twice adds
// 1 / contributors to its share.
constexpr float kTolerance = 0x1p-8f;

// Returns the first columns of the first row.
std::vector<float> Head(absl::Span<const float> values) {
  return {values.begin(), values.begin() + CountedOnceLaw::kColumns};
}

}  // namespace

CountedOnceLaw::CountedOnceLaw(std::vector<LayerSpec> layers,
                               const JobOptions& options)
    : layers_(std::move(layers)),
      has_means_(options.optimizer_place == OptimizerPlace::kWorker),
      has_changes_(options.optimizer == ExactSgd() &&
                   options.rate_schedule == RateSchedule() &&
                   options.rounds.quorum == Quorum::kAll &&
                   options.sparsity.share == 0) {}

void CountedOnceLaw::Observe(const ClusterEvent& event) {
  if (const auto* epoch = std::get_if<EpochBegun>(&event)) {
    const std::vector<EpochWorker>& workers = epoch->job->workers;
    is_blind_ =
        is_blind_ || (!workers.empty() && workers.back().rank >= kColumns);
  }
  const auto* done = std::get_if<RoundDone>(&event);
  if (done == nullptr || is_blind_) return;
  if (layers_[done->place.layer].n < kColumns) return;
  if (has_means_) {
    OnMean(*done);
  } else if (has_changes_) {
    OnParameters(*done);
  }
}

bool CountedOnceLaw::TakesPart(const LayerPlace& place) const {
  const Job& job = view().job();
  const int position = job.PositionOf(place.rank);
  return position >= 0 && job.workers[position].first_step <= place.round;
}

void CountedOnceLaw::OnMean(const RoundDone& done) {
  if (!done.mean.has_value() || done.skipped || !TakesPart(done.place)) return;
  Check(Head(done.mean->values), done.place);
}

void CountedOnceLaw::OnParameters(const RoundDone& done) {
  const LayerPlace& at = done.place;
  std::vector<float> values = Head(done.parameters.values);
  Before& before = before_[{at.rank, at.layer}];
  const bool is_next = !before.values.empty() && before.round == at.round - 1;
  if (is_next && TakesPart(at)) {
    std::vector<float> mean(kColumns);
    for (int64_t i = 0; i < kColumns; ++i) {
      mean[i] = (before.values[i] - values[i]) / ExactSgd().learning_rate;
    }
    Check(mean, at);
  }
  before = {at.round, std::move(values)};
}

void CountedOnceLaw::Check(const std::vector<float>& mean,
                           const LayerPlace& place) {
  ++checked_count_;
  const auto has = [](float share) { return std::abs(share) > kTolerance; };
  const auto contributors = absl::c_count_if(mean, has);
  const float share = 1.0f / static_cast<float>(contributors);
  const bool is_once = absl::c_all_of(mean, [&](float x) {
    return !has(x) || std::abs(x - share) <= kTolerance;
  });
  if (is_once && has(mean[place.rank])) return;
  // Workers that are dead by now may have closed the round. If all workers die
  // in a step, the rounds of some of its layers are closed, and the next worker
  // begins with that step.
  const Job& job = view().job();
  const bool is_of_dead = absl::c_none_of(job.workers, [&](const auto& w) {
    return w.rank < kColumns && has(mean[w.rank]);
  });
  const int position = job.PositionOf(place.rank);
  const bool is_first_step = job.workers[position].first_step == place.round;
  if (is_once && is_of_dead && is_first_step) return;
  Breach(PlaceOf(place), absl::StrCat("shares of the mean by rank are ",
                                      absl::StrJoin(mean, " "),
                                      ", each contributor's is to be ", share));
}

}  // namespace nereus
