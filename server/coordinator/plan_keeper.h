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

// Plan of a running job: finds a better plan from the measurements of the
// workers, and leads the workers through the trials of fusion.
//
// Pure; Epochs owns it. Memory: the last measurements of each worker.
class PlanKeeper {
 public:
  explicit PlanKeeper(const CoordinatorOptions& options)
      : replanner_(RulesFor(options.spec.options, options.spec.rules),
                   options.replan_interval),
        fusion_(options.spec.options.tune_fusion,
                options.spec.options.fusion_bytes) {}

  // Replanner, for the first plan of a job, and for whether its workers must
  // measure.
  Replanner& replanner() { return replanner_; }

  // Threshold of fusion, in bytes, if it is tuned.
  std::optional<int64_t> fusion_bytes() const { return fusion_.bytes(); }
  // Last message to the workers about fusion, if any.
  const std::optional<SetFusion>& fusion_told() const { return fusion_.told(); }

  // Returns a better plan for `workers` workers than the job's, if there is
  // one.
  const std::optional<Replanner::BetterPlan>& Better(const Job& job,
                                                     int workers) {
    return replanner_.Better(job, workers);
  }

  // Notes the measurements of a worker. Returns true if it is time to look for
  // a better plan. REQUIRES: Replanner::Check(measured, job) is OK.
  bool OnMeasured(int32_t worker, const Measured& measured, const Job& job,
                  absl::Time now, CoordinatorOutbox& out);

  // Starts the trials of fusion again if the measurements say that another
  // threshold is better. `begun_step`: last step that a worker has begun.
  void TuneFusionAnew(const Job& job, int64_t begun_step,
                      const MemberList& roster, CoordinatorOutbox& out);

  // Notes the step time of a worker in a trial. REQUIRES:
  // FusionTuning::Check(timed) is OK.
  void OnFusionTimed(int32_t worker, const FusionTimed& timed,
                     const MemberList& roster, CoordinatorOutbox& out);

  // Starts an epoch. `changed_to`: its plan if the plan changes; otherwise
  // null.
  void OnEpoch(const Job& job, const Plan* changed_to, int64_t begun_step);

  // Tells the workers of the epoch their threshold of fusion.
  void TellFusion(const Job& job, const MemberList& roster,
                  CoordinatorOutbox& out);

 private:
  Replanner replanner_;
  FusionTuning fusion_;
};

}  // namespace nereus
