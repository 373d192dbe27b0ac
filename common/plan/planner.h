#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/plan/cost_model.h"
#include "common/plan/fusion.h"
#include "common/plan/layer_spec.h"
#include "common/plan/route.h"
#include "common/plan/scheme.h"
#include "common/plan/timeline.h"
#include "common/plan/wire_type.h"

namespace nereus {

// What the planner keeps small.
enum class CostKind {
  // "bytes": what a node sends and receives. Poseidon's algorithm 1: a fully
  // connected layer goes by factors exactly if FactorsMoveNoMore, everything
  // else through the servers.
  kBytes,
  kTime,  // "time": what an iteration takes (ChooseByTime).
};

absl::string_view CostKindName(CostKind kind);

// Why.
struct RouteExplanation {
  // What a node that is worker and server sends plus receives per step for the
  // layer's matrix, by scheme (cost_model.h). `factor_elements` is absent where
  // the layer has no factors.
  int64_t server_elements = 0;
  int64_t ring_elements = 0;
  std::optional<int64_t> factor_elements;

  // One sentence with the figures above, without a full stop.
  std::string reason;
};

// The routes of a model, with an explanation for each, both by layer; and how
// they share messages.
struct Plan {
  std::vector<Route> routes;
  std::vector<RouteExplanation> explanations;
  int64_t fusion_bytes = kNoFusion;  // As of the rules, or as chosen.
};

// What a job's owner says about its plan.
struct PlanRules {
  // The scheme of every layer that supports it, instead of the cost's choice;
  // the others go through the servers.
  std::optional<Scheme> forced;

  CostKind cost = CostKind::kBytes;

  WireType wire = WireType::kFloat32;  // Of every layer.
  // Instead bf16 for layers where that makes an iteration shorter, and fp32 for
  // all others, and until that is known. With CostKind::kTime.
  bool choose_wire = false;

  int64_t fusion_bytes = kNoFusion;
  // Instead what makes an iteration shortest, where CostKind::kTime can tell:
  // what FusionTuner begins with.
  bool choose_fusion = false;

  // Why all layers have to go through the servers; empty: they have not.
  std::string servers_only;

  // Why no layer may go by factors; empty: they may.
  std::string no_factors;

  // Why a job keeps its first plan, or may have to; empty: it does not.
  std::string fixed;

  // OK, or kInvalidArgument: what does not go together, and why.
  absl::Status Validate() const;

  // Whether the cost decides anything.
  bool choose() const {
    return servers_only.empty() && (!forced.has_value() || choose_wire);
  }

  // "auto", or the forced scheme's name.
  std::string scheme_name() const;
  // "auto", or the type's name.
  std::string wire_name() const;
};

struct PlanOptions {
  ClusterShape cluster;
  PlanRules rules;
  std::optional<TimeModel> time;  // For CostKind::kTime.
};

// Whether `rules` let any of these layers go by factors.
bool MayUseFactors(const PlanRules& rules, absl::Span<const LayerSpec> layers);

// Routes for `layers`. With one worker all go through the servers, whatever is
// forced: it has no peer to send to, and the paper's rule, 0 <= 0, would say
// factors. Pure: equal arguments give equal plans on every machine.
//
// Errors: kInvalidArgument, bad layers, cluster or model of time, or a scheme
// that is forced although all layers have to go through the servers.
absl::StatusOr<Plan> MakePlan(absl::Span<const LayerSpec> layers,
                              const PlanOptions& options);

// What a step costs by `routes`, which need not be the best, as
// options.rules.cost counts: bytes that a node sends plus receives, by the
// formulas of cost_model.h; or seconds, with their best fusion if that is to be
// chosen.
//
// REQUIRES: a plan for the same arguments may be made.
double PlanCost(absl::Span<const LayerSpec> layers, const PlanOptions& options,
                absl::Span<const Route> routes);

// The threshold of fusion for `routes`: as of the rules, or the best.
//
// REQUIRES: a plan for the same arguments may be made.
int64_t FusionFor(absl::Span<const LayerSpec> layers,
                  const PlanOptions& options, absl::Span<const Route> routes);

}  // namespace nereus
