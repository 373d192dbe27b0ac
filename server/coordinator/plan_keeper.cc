#include "server/coordinator/plan_keeper.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nereus {

bool PlanKeeper::OnMeasured(int32_t worker, const Measured& measured,
                            const Job& job, absl::Time now,
                            CoordinatorOutbox& out) {
  if (!replanner_.OnMeasured(worker, measured, job, now)) return false;
  const auto known = replanner_.known(job, fusion_.bytes());
  const LinkSpeed& link = known->measured.link;
  out.push_back(Announce{
      false,
      absl::StrFormat("workers have measured: links of %.4g bytes/s, %s a "
                      "frame, %s more for each in a row; %s computing a step; "
                      "%s an iteration, %s predicted",
                      link.rate, absl::FormatDuration(link.latency),
                      absl::FormatDuration(link.message_time),
                      absl::FormatDuration(TotalTime(known->measured.times)),
                      absl::FormatDuration(known->measured.step_time),
                      absl::FormatDuration(known->predicted))});
  return true;
}

// A new prediction is compared with the best threshold so far, or with the
// first one if the trials are not over.
void PlanKeeper::TuneFusionAnew(const Job& job, int64_t begun_step,
                                const MemberList& roster,
                                CoordinatorOutbox& out) {
  const std::optional<int64_t> bytes =
      fusion_.done() ? fusion_.bytes() : fusion_.first();
  if (!fusion_.bytes().has_value()) return;
  const auto better = replanner_.FindBetterFusion(job, *bytes);
  if (!better.has_value()) return;
  roster.TellWorkers(*fusion_.Restart(better->bytes, begun_step), out);
  out.push_back(
      Announce{false, absl::StrCat("tunes fusion from ", better->bytes,
                                   " bytes on: ", better->why)});
}

void PlanKeeper::OnFusionTimed(int32_t worker, const FusionTimed& timed,
                               const MemberList& roster,
                               CoordinatorOutbox& out) {
  const std::optional<SetFusion> next = fusion_.OnTimed(worker, timed);
  if (!next.has_value()) return;
  roster.TellWorkers(*next, out);
  if (!fusion_.done()) return;
  const FusionTuner& tuner = fusion_.tuner();
  out.push_back(Announce{
      false,
      absl::StrCat("fusion of ", tuner.best(), " bytes from step ",
                   next->from_step, " on: an iteration took ",
                   absl::FormatDuration(absl::Seconds(tuner.best_seconds())),
                   ", the least of ", tuner.trials(), " trials")});
}

void PlanKeeper::OnEpoch(const Job& job, const Plan* changed_to,
                         int64_t begun_step) {
  replanner_.OnEpoch(job, changed_to != nullptr);
  if (changed_to == nullptr || !fusion_.bytes().has_value()) return;
  // Trials of the plan before do not count for this one.
  const bool is_predicted = replanner_.measures(job.options);
  fusion_.Restart(is_predicted ? changed_to->fusion_bytes : *fusion_.bytes(),
                  begun_step);
}

void PlanKeeper::TellFusion(const Job& job, const MemberList& roster,
                            CoordinatorOutbox& out) {
  std::vector<int32_t> workers;
  for (const EpochWorker& each : job.workers) workers.push_back(each.rank);
  const auto set = fusion_.OnEpoch(std::move(workers), job.first_step - 1);
  if (set.has_value()) roster.TellWorkers(*set, out);
}

}  // namespace nereus
