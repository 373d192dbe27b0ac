#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// Says when another plan would be worth a change: as workers come and go, and,
// with CostKind::kTime, as they measure what links and layers take.
//
// A job begins with the plan by bytes; by time it is planned once all its
// workers have measured. What counts is the slowest of them, for every figure.
// Pure; the coordinator owns it.
class Replanner {
 public:
  // `rules`: as of RulesFor. Figures lead to another look at the plan so often
  // at most, and half as often with each change of plans that they have led to.
  explicit Replanner(PlanRules rules,
                     absl::Duration interval = absl::Seconds(10))
      : rules_(std::move(rules)), interval_(interval) {}

  // Whether there is anything to choose for a job with these options.
  bool chooses(const JobOptions& options) const;
  // Whether workers have to measure: for that, or for where to begin with the
  // tuning of fusion.
  bool measures(const JobOptions& options) const {
    return (chooses(options) || options.tune_fusion) &&
           rules_.cost == CostKind::kTime;
  }

  // The plan of a job that begins, of which nothing is known yet.
  absl::StatusOr<Plan> FirstPlan(absl::Span<const LayerSpec> layers,
                                 const ClusterShape& cluster) const;

  // OK, or kInvalidArgument.
  static absl::Status Check(const Measured& measured, const Job& job);

  // What a worker has measured. True: it is time to ask for a better plan.
  // REQUIRES: Check(measured, job) is OK.
  bool OnMeasured(int32_t worker, const Measured& measured, const Job& job,
                  absl::Time now);

  // An epoch begins, with another plan or not: what workers that are gone have
  // measured counts no more.
  void OnEpoch(const Job& job, bool changed);

  // A plan for so many workers that costs less than the job's by more than a
  // change of plans is worth, if there is one, and any plan may be chosen; or,
  // with PlanRules::choose_wire, one that costs no more and has float32 where
  // the job's has 16 bits.
  struct BetterPlan {
    Plan plan;
    std::string why;  // Both costs, for the log.
  };
  const std::optional<BetterPlan>& Better(const Job& job, int workers);

  // The best threshold of fusion for the job's plan, if by what is known an
  // iteration is shorter with it, by as much, than with `bytes`.
  struct BetterFusion {
    int64_t bytes = 0;
    std::string why;
  };
  std::optional<BetterFusion> FindBetterFusion(const Job& job,
                                               int64_t bytes) const;

  // What the slowest worker has measured, and what an iteration should take by
  // the job's plan, with that. Nothing if that is not known.
  struct Known {
    Measured measured;
    absl::Duration predicted;
  };
  // `fusion_bytes`: as it is now, if it is tuned.
  std::optional<Known> known(const Job& job,
                             std::optional<int64_t> fusion_bytes) const;

 private:
  PlanOptions OptionsFor(const Job& job, int workers) const;
  // Of all that workers have measured the slowest.
  Measured Slowest() const;
  std::optional<BetterPlan> FindBetter(const Job& job, int workers) const;

  const PlanRules rules_;
  const absl::Duration interval_;
  std::map<int32_t, Measured> measured_;  // By worker, what was news.
  // What the last plan was made by, or might have been; none: not all workers
  // have measured yet.
  std::optional<Measured> known_;
  bool news_ = false;  // Since known_ was.
  absl::Time not_before_ = absl::InfinitePast();
  int changes_ = 0;  // Of plans.

  // The last answer of Better, and to what.
  struct Asked {
    std::vector<Route> routes;
    int workers = 0;
    bool operator==(const Asked&) const = default;
  };
  std::optional<Asked> asked_;
  std::optional<BetterPlan> better_;
};

}  // namespace nereus
