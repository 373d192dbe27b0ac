#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/fusion_tuning.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/replanner.h"

namespace nereus {

// The job's plan while it runs: finds a better one from what workers measure,
// and leads them through the trials of fusion.
class PlanKeeper {
 public:
  explicit PlanKeeper(const CoordinatorOptions& options)
      : replanner_(RulesFor(options.spec.options, options.spec.rules),
                   options.replan_interval),
        fusion_(options.spec.options.tune_fusion,
                options.spec.options.fusion_bytes) {}

  // Finds the first plan of a job, of which nothing is known yet, and whether
  // its workers must measure.
  Replanner& replanner() { return replanner_; }

  // Threshold of fusion, in bytes, if it is tuned.
  std::optional<int64_t> fusion_bytes() const { return fusion_.bytes(); }
  // Last message to the workers about fusion, if any.
  const std::optional<SetFusion>& fusion_told() const { return fusion_.told(); }

  // A better plan than the job's for `workers` workers, if there is one.
  const std::optional<Replanner::BetterPlan>& Better(const Job& job,
                                                     int workers) {
    return replanner_.Better(job, workers);
  }

  // Notes what a worker has measured. Returns true if it is time to look for a
  // better plan. REQUIRES: Replanner::Check(measured, job) is OK.
  bool OnMeasured(int32_t worker, const Measured& measured, const Job& job,
                  absl::Time now, CoordinatorOutbox& out);

  // Starts the trials of fusion anew where the figures say that another
  // threshold is best. `begun_step`: last step that a worker has begun.
  void TuneFusionAnew(const Job& job, int64_t begun_step,
                      const MemberList& roster, CoordinatorOutbox& out);

  // Notes what a worker has measured in a trial. REQUIRES:
  // FusionTuning::Check(timed) is OK.
  void OnFusionTimed(int32_t worker, const FusionTimed& timed,
                     const MemberList& roster, CoordinatorOutbox& out);

  // Starts an epoch. `changed_to`: its plan, if that is another one.
  void OnEpoch(const Job& job, const Plan* changed_to, int64_t begun_step);

  // Tells the workers of the epoch which threshold of fusion they use.
  void TellFusion(const Job& job, const MemberList& roster,
                  CoordinatorOutbox& out);

 private:
  Replanner replanner_;
  FusionTuning fusion_;
};

}  // namespace nereus
