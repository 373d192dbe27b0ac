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
#include "common/plan/route.h"
#include "common/plan/scheme.h"
#include "common/plan/timeline.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Quantity that the planner keeps small.
enum class CostKind {
  // "bytes": elements that a host sends and receives. Zhang et al., "Poseidon",
  // algorithm 1: a fully connected layer goes by factors exactly if
  // FactorsMoveNoMore, every other layer by the servers, and on a single host
  // all layers.
  kBytes,
  kTime,  // "time": the time of an iteration (ChooseByTime).
};

// Returns the value of --cost.
absl::string_view CostKindName(CostKind kind);

// Reason for a layer's route, with the figures that it depends on. The figures
// count the layer's matrix, for the link of a host with as many workers and
// servers as any host, sent plus received in one step (cost_model.h).
struct RouteExplanation {
  int64_t server_elements = 0;  // Elements by servers.
  int64_t ring_elements = 0;    // Elements on a ring.
  // Elements by factors; nothing if the layer has no factors.
  std::optional<int64_t> factor_elements;

  // Sentence with these figures, without a full stop.
  std::string reason;

  // Elements that the host's workers hand each other by the layer's route
  // (LocalElements). Reports of running jobs do not carry them.
  int64_t local_elements = 0;
};

// Routes of a model, and the fusion threshold.
struct Plan {
  std::vector<Route> routes;                   // Route of each layer.
  std::vector<RouteExplanation> explanations;  // Reason for each route.
  // Fusion threshold: the rules', or the chosen one.
  int64_t fusion_bytes = kNoFusion;
};

// Rules of a job's owner for its plans, and restrictions that follow from other
// options (RulesFor). Restrictions are texts: the reason appears in the plan's
// report. A value type.
struct PlanRules {
  // Scheme of every layer that supports it; the other layers use the servers.
  // Nothing: the cost decides.
  std::optional<Scheme> forced;

  // Quantity that decides.
  CostKind cost = CostKind::kBytes;

  WireType wire = WireType::kFloat32;  // Wire type of every layer.
  // True if the plan chooses instead of `wire`: bf16 for layers where that
  // makes an iteration shorter, else fp32. Needs CostKind::kTime.
  bool choose_wire = false;

  // Fusion threshold.
  int64_t fusion_bytes = kNoFusion;
  // True if the plan chooses instead of `fusion_bytes`, where CostKind::kTime
  // can tell. FusionTuner begins with the chosen one.
  bool choose_fusion = false;

  // Reason why all layers must use the servers; empty: they need not.
  std::string servers_only;

  // Reason why no layer may go by factors; empty: layers may.
  std::string no_factors;

  // Reason why a job keeps its first plan; empty: it may change plans.
  std::string fixed;

  // Returns OK, or kInvalidArgument: the message names the two rules that
  // exclude each other, and why.
  absl::Status Validate() const;

  // True if the cost decides anything.
  bool choose() const {
    return servers_only.empty() && (!forced.has_value() || choose_wire);
  }

  // Returns "auto", or the forced scheme's name.
  std::string scheme_name() const;
  // Returns "auto", or the wire type's name.
  std::string wire_name() const;
};

// Everything that a plan depends on besides the layers.
struct PlanOptions {
  ClusterShape cluster;           // Number of workers, servers and hosts.
  PlanRules rules;                // Rules of the owner.
  std::optional<TimeModel> time;  // Required for CostKind::kTime.
};

// True if `rules` allow factors for any of these layers.
bool MayUseFactors(const PlanRules& rules, absl::Span<const LayerSpec> layers);

// Returns the routes of `layers`. With one worker all layers use the servers,
// even if another scheme is forced: a single worker has no peer, and the
// paper's rule, 0 <= 0, would give factors. Pure: equal arguments give equal
// plans on every machine.
//
// Errors: kInvalidArgument, bad layers, cluster or time model, or a scheme is
// forced although all layers must use the servers.
absl::StatusOr<Plan> MakePlan(absl::Span<const LayerSpec> layers,
                              const PlanOptions& options);

// Returns the cost of one step with `routes`, which need not be the best ones,
// in the unit of options.rules.cost: bytes that a host sends plus receives, by
// the formulas of cost_model.h, or seconds, with the best fusion if that may be
// chosen.
//
// REQUIRES: MakePlan accepts the same arguments.
double PlanCost(absl::Span<const LayerSpec> layers, const PlanOptions& options,
                absl::Span<const Route> routes);

// Returns the fusion threshold for `routes`: the rules', or the best one.
//
// REQUIRES: MakePlan accepts the same arguments.
int64_t FusionFor(absl::Span<const LayerSpec> layers,
                  const PlanOptions& options, absl::Span<const Route> routes);

}  // namespace nereus
