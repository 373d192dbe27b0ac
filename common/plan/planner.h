#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/cost_model.h"
#include "common/plan/fusion.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/route.h"
#include "common/plan/scheme.h"
#include "common/plan/timeline.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Quantity that the planner keeps small.
enum class CostKind {
  // "bytes": bytes that a host sends plus receives. Zhang et al., "Poseidon",
  // algorithm 1: a layer goes by factors if the rules allow it, the layer has
  // factors, FactorsMoveNoMore is true and there are two hosts or more. All
  // other layers go by the servers.
  kBytes,
  kTime,  // "time": the time of an iteration (ChooseByTime).
};

// Returns the name of `kind`, as --cost takes it: "bytes".
absl::string_view CostKindName(CostKind kind);

// Reason for a layer's route, and the elements that each scheme would move:
// those that host 0 would send plus receive over its link in one step, by the
// formulas of cost_model.h. The bias is not counted.
struct RouteExplanation {
  int64_t server_elements = 0;  // Elements by servers.
  int64_t ring_elements = 0;    // Elements on a ring.
  int64_t direct_elements = 0;  // Elements of the direct way.
  // Elements by factors; nothing if the layer has no factors.
  std::optional<int64_t> factor_elements;

  // Sentence for reports, without a full stop. With CostKind::kBytes it names
  // the elements by servers, and by factors if the layer has factors.
  std::string reason;

  // Elements that the workers of host 0 hand each other through memory by the
  // layer's route (LocalElements). 0 in a plan that comes from a running job,
  // because messages do not carry this number.
  int64_t local_elements = 0;
};

// Routes of a model, and the fusion threshold.
struct Plan {
  std::vector<Route> routes;                   // Route of each layer.
  std::vector<RouteExplanation> explanations;  // Reason for each route.
  // Fusion threshold: the one of the rules, or the planner's choice.
  int64_t fusion_bytes = kNoFusion;
};

// Rules for the plans of a job: choices of the user that starts it, and
// restrictions that follow from other options (RulesFor). A restriction is a
// text: the reason for it, which the plan's report shows. An empty text means
// that there is no such restriction. A value type.
struct PlanRules {
  // Scheme that all layers must use if they support it; the other layers use
  // the servers. Nothing: the cost decides.
  std::optional<Scheme> forced;

  // Quantity that the planner keeps small when it chooses schemes and wire
  // types (choose()) or the fusion threshold (choose_fusion).
  CostKind cost = CostKind::kBytes;

  WireType wire = WireType::kFloat32;  // Wire type of every layer.
  // True if the planner chooses each layer's wire type and ignores `wire`: bf16
  // where that makes an iteration shorter, else fp32. Needs CostKind::kTime.
  bool choose_wire = false;

  int64_t chunk_bytes = kChunkAuto;  // See Placement::Make.

  // Fusion threshold (fusion.h).
  int64_t fusion_bytes = kNoFusion;
  // True if FusionTuner searches for the threshold during the job. The search
  // begins with the threshold of the plan. The planner chooses that threshold
  // with CostKind::kTime; with CostKind::kBytes it is `fusion_bytes`.
  bool choose_fusion = false;

  // Reason why all layers must use the servers.
  std::string servers_only;

  // Reason why no layer may go by factors.
  std::string no_factors;

  // Reason why a job must keep its first plan.
  std::string fixed;

  // True if the gradients of a job of one worker stay with it, except those of
  // its smallest layer. The caller of the worker runs the optimizer, so servers
  // would only send each gradient back. The smallest layer goes by the servers,
  // so that they know which rounds are done.
  bool lone_stays = false;

  // Returns OK if the rules agree. Errors: kInvalidArgument; the message names
  // two rules that exclude each other, and why.
  absl::Status Validate() const;

  // True if the cost decides a layer's scheme or wire type.
  bool choose() const {
    return servers_only.empty() && (!forced.has_value() || choose_wire);
  }

  // Returns "auto", or the forced scheme's name.
  std::string scheme_name() const;
  // Returns "auto", or the wire type's name.
  std::string wire_name() const;
};

// Arguments of a plan besides the layers.
struct PlanOptions {
  ClusterShape cluster;           // Number of workers, servers and hosts.
  PlanRules rules;                // Rules of the job's plans.
  std::optional<TimeModel> time;  // Required for CostKind::kTime.
};

// True if `rules` allow factors for at least one of these layers, now or once
// its rows are known.
bool MayUseFactors(const PlanRules& rules, absl::Span<const LayerSpec> layers);

// Returns the plan for `layers`. With one worker and without
// PlanRules::lone_stays, all layers use the servers, even if another scheme is
// forced: a single worker has no peer to send to, and
// by bytes factors would always win, because they would cost 0. Pure: equal
// arguments give equal plans in every process.
//
// Errors: kInvalidArgument: bad layers, cluster or time model; rules that
// Validate refuses; no time model although CostKind::kTime decides.
absl::StatusOr<Plan> MakePlan(absl::Span<const LayerSpec> layers,
                              const PlanOptions& options);

// Returns the placement of the layers of a job with these options. Errors:
// those of Placement::Make.
absl::StatusOr<Placement> MakePlacement(absl::Span<const LayerSpec> layers,
                                        const PlanOptions& options);

// Returns the cost of one step with `routes`, whether MakePlan would choose
// them or not. With CostKind::kBytes, the cost is the bytes that a host sends
// plus receives, by the formulas of cost_model.h. With CostKind::kTime, it is
// the seconds of an iteration with the fusion threshold of FusionFor.
//
// REQUIRES: MakePlan accepts the arguments; CostKind::kTime has a time model.
double PlanCost(absl::Span<const LayerSpec> layers, const PlanOptions& options,
                absl::Span<const Route> routes);

// Returns the fusion threshold for `routes`: BestFusion if rules.choose_fusion,
// the cost is CostKind::kTime and there is a time model; else
// rules.fusion_bytes.
//
// REQUIRES: MakePlan accepts the same arguments.
int64_t FusionFor(absl::Span<const LayerSpec> layers,
                  const PlanOptions& options, absl::Span<const Route> routes);

}  // namespace nereus
