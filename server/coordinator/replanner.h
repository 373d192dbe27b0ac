#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Finds a better plan for a running job: when the number of workers changes,
// and, with CostKind::kTime, when the workers have measured their links and
// layers.
//
//   unknown --every worker has measured--> known, search for a plan
//   known   --measurements change by 20 %--> known, search for a plan
//
// A job begins with the plan that moves the fewest bytes. With CostKind::kTime,
// Replanner looks for the plan with the shortest iteration once all workers
// have measured; for every figure the slowest worker counts. A new plan must
// save 3 % (but see Better). Without that margin, noise in the measurements
// would change plans again and again, and each change costs about two
// iterations.
//
// Pure; the coordinator owns it. Memory: the last measurements of each worker.
class Replanner {
 public:
  // `rules`: rules of the job (RulesFor). `interval`: least time between two
  // searches after measurements, in the first plan. Each of the first eight
  // changes of the plan doubles it.
  explicit Replanner(PlanRules rules,
                     absl::Duration interval = absl::Seconds(10))
      : rules_(std::move(rules)), interval_(interval) {}

  // True if a job with these options may change its plan.
  bool chooses(const JobOptions& options) const;
  // True if workers have to measure their links and layers: for a better plan,
  // or for the threshold with which the tuning of fusion begins.
  bool measures(const JobOptions& options) const {
    return (chooses(options) || options.tune_fusion) &&
           rules_.cost == CostKind::kTime;
  }

  // Returns the first plan of a job with these options. It needs no
  // measurements.
  absl::StatusOr<Plan> FirstPlan(absl::Span<const LayerSpec> layers,
                                 const ClusterShape& cluster,
                                 const JobOptions& options) const;

  // Returns the plan by the rules of the job for `layers`, the model with rows
  // that the job has just learnt: by the measurements if plans follow them and
  // they are known, else as FirstPlan. `workers`, `hosts`: as for Better. The
  // plan need not cost less than the present one: that was made without the
  // rows.
  absl::StatusOr<Plan> PlanFor(absl::Span<const LayerSpec> layers,
                               const Job& job, int workers, int hosts) const;

  // True if the rules allow factors for one of these layers, now or once its
  // rows are known.
  bool AllowsFactors(absl::Span<const LayerSpec> layers) const {
    return MayUseFactors(rules_, layers);
  }

  // Checks the measurements of a worker. Errors: kInvalidArgument, with the
  // value.
  static absl::Status Check(const Measured& measured, const Job& job);

  // Notes the measurements of a worker. Returns true if the caller should now
  // ask for a better plan (Better). REQUIRES: Check(measured, job) is OK.
  bool OnMeasured(int32_t worker, const Measured& measured, const Job& job,
                  absl::Time now);

  // Returns the time that a worker computes in a step, as the slowest worker of
  // each layer has measured it; nothing before all workers have measured.
  std::optional<absl::Duration> ComputingTime(const Job& job) const;

  // Starts an epoch, and forgets the measurements of workers that are gone.
  // `changed`: the epoch has a plan of Better.
  void OnEpoch(const Job& job, bool changed);

  // Plan that is worth a change.
  struct BetterPlan {
    Plan plan;
    std::string why;  // Costs of both plans, for the log.
  };
  // Returns a plan for `workers` workers on `hosts` hosts (0: each worker has
  // its own host) that costs at least 3 % less than the job's plan. Returns
  // nothing if there is no such plan, or if the job may not change its plan
  // (chooses). With PlanRules::choose_wire, also returns a plan that costs up
  // to 1 % more, if it differs from the job's plan only in layers with float32
  // instead of 16 bits.
  const std::optional<BetterPlan>& Better(const Job& job, int workers,
                                          int hosts = 0);

  // Threshold of fusion that is worth new trials.
  struct BetterFusion {
    int64_t bytes = 0;
    std::string why;  // Predictions for both thresholds, for the log.
  };
  // Returns the best threshold for the job's plan, if the predicted iteration
  // is at least 3 % shorter with this threshold than with `bytes`.
  std::optional<BetterFusion> FindBetterFusion(const Job& job,
                                               int64_t bytes) const;

  // Returns what is known; nothing before all workers have measured.
  // `fusion_bytes`: the threshold of fusion, if it is tuned.
  std::optional<KnownTimes> known(const Job& job,
                                  std::optional<int64_t> fusion_bytes) const;
  // Returns the line for the log about `known`.
  static std::string Describe(const KnownTimes& known);

 private:
  PlanOptions OptionsFor(const Job& job, int workers, int hosts) const;
  // Returns the rules of the job, with PlanRules::lone_stays.
  PlanRules RulesWith(const JobOptions& options) const;
  // Returns for each figure the slowest measurement.
  Measured Slowest() const;
  std::optional<BetterPlan> FindBetter(const Job& job, int workers,
                                       int hosts) const;

  const PlanRules rules_;
  const absl::Duration interval_;
  // Measurements of each worker, by rank, as of their last change that counted.
  // Only the step time is always the newest.
  std::map<int32_t, Measured> measured_;
  // Measurements used by the last search for a plan; empty until every worker
  // has measured.
  std::optional<Measured> known_;
  // True if measurements have changed, or a worker with measurements has left,
  // since OnMeasured last decided on a search.
  bool news_ = false;
  // Time before which no search follows measurements.
  absl::Time not_before_ = absl::InfinitePast();
  int changes_ = 0;  // Number of changes of the plan, at most 8.

  // Arguments of the last call of Better, and its answer.
  std::optional<
      std::tuple<std::vector<Route>, std::vector<LayerSpec>, int, int>>
      asked_;
  std::optional<BetterPlan> better_;
};

}  // namespace nereus
