#include "common/plan/planner.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/plan/placement.h"
#include "common/plan/time_cost.h"

namespace nereus {
namespace {

constexpr char kNoFactors[] = "its gradient has no factors";

SchemeChoice ChooseByBytes(const LayerSpec& layer, const ClusterShape& cluster,
                           const std::string& why_no_factors) {
  if (!SupportsScheme(layer, Scheme::kFactor)) {
    return {Scheme::kServer, kNoFactors};
  }
  if (!why_no_factors.empty()) return {Scheme::kServer, why_no_factors};
  if (!FactorsMoveNoMore(layer, cluster)) {
    return {Scheme::kServer, "factors would move more"};
  }
  const bool less = FactorSchemeElements(layer, cluster) <
                    ServerSchemeBothElements(layer.m * layer.n, cluster);
  return {Scheme::kFactor, less ? "factors move less" : "factors move no more"};
}

absl::StatusOr<std::vector<SchemeChoice>> ChooseByCost(
    absl::Span<const LayerSpec> layers, const PlanOptions& options) {
  const PlanRules& rules = options.rules;
  if (rules.cost == CostKind::kTime) {
    if (!options.time.has_value()) {
      return absl::InvalidArgumentError(
          "cost time needs to know what links carry and what layers compute");
    }
    NEREUS_RETURN_IF_ERROR(options.time->Validate(layers));
    NEREUS_ASSIGN_OR_RETURN(
        const Placement placement,
        Placement::Make(layers, static_cast<int>(options.cluster.servers)));
    return ChooseByTime(layers, placement, options.cluster, *options.time,
                        rules.wire, rules.no_factors.empty());
  }
  std::vector<SchemeChoice> choices;
  for (const LayerSpec& layer : layers) {
    choices.push_back(ChooseByBytes(layer, options.cluster, rules.no_factors));
  }
  return choices;
}

SchemeChoice ForcedChoice(const LayerSpec& layer, Scheme forced) {
  if (!SupportsScheme(layer, forced)) return {Scheme::kServer, kNoFactors};
  return {forced, absl::StrCat("scheme ", SchemeName(forced), " is forced")};
}

absl::StatusOr<std::vector<SchemeChoice>> Choose(
    absl::Span<const LayerSpec> layers, const PlanOptions& options) {
  if (options.cluster.workers == 1) {
    return std::vector<SchemeChoice>(
        layers.size(), {Scheme::kServer, "one worker has no peer to send to"});
  }
  if (const std::string& why = options.rules.servers_only; !why.empty()) {
    return std::vector<SchemeChoice>(layers.size(), {Scheme::kServer, why});
  }
  if (!options.rules.forced.has_value()) return ChooseByCost(layers, options);
  std::vector<SchemeChoice> choices;
  choices.reserve(layers.size());
  for (const LayerSpec& layer : layers) {
    choices.push_back(ForcedChoice(layer, *options.rules.forced));
  }
  return choices;
}

RouteExplanation Explain(const LayerSpec& layer, const ClusterShape& cluster,
                         const SchemeChoice& choice) {
  RouteExplanation explanation;
  explanation.server_elements =
      ServerSchemeBothElements(layer.m * layer.n, cluster);
  explanation.ring_elements = RingSchemeElements(layer.m * layer.n, cluster);
  std::string factors;
  if (SupportsScheme(layer, Scheme::kFactor)) {
    explanation.factor_elements = FactorSchemeElements(layer, cluster);
    factors = absl::StrCat(", factors ", *explanation.factor_elements);
  }
  explanation.reason =
      absl::StrCat(choice.why, ": per node and step the servers' way moves ",
                   explanation.server_elements, " elements", factors);
  return explanation;
}

}  // namespace

absl::string_view CostKindName(CostKind kind) {
  switch (kind) {
    case CostKind::kBytes:
      return "bytes";
    case CostKind::kTime:
      return "time";
  }
  return "unknown";
}

absl::StatusOr<CostKind> ParseCostKind(absl::string_view name) {
  for (const CostKind kind : {CostKind::kBytes, CostKind::kTime}) {
    if (name == CostKindName(kind)) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown cost \"", absl::CHexEscape(name.substr(0, 64)),
                   "\", known are bytes and time"));
}

absl::Status PlanRules::Validate() const {
  const bool fits = !forced.has_value() || !PassesServers(*forced);
  if (!no_factors.empty() && forced == Scheme::kFactor) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheme factor is forced: ", no_factors));
  }
  if (servers_only.empty() || fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("scheme ", SchemeName(*forced),
                   " goes past the servers: ", servers_only));
}

std::string PlanRules::scheme_name() const {
  return forced.has_value() ? std::string(SchemeName(*forced)) : "auto";
}

absl::StatusOr<Plan> MakePlan(absl::Span<const LayerSpec> layers,
                              const PlanOptions& options) {
  NEREUS_RETURN_IF_ERROR(ValidateLayers(layers));
  NEREUS_RETURN_IF_ERROR(options.cluster.Validate());
  NEREUS_RETURN_IF_ERROR(options.rules.Validate());
  NEREUS_ASSIGN_OR_RETURN(const std::vector<SchemeChoice> choices,
                          Choose(layers, options));
  NEREUS_CHECK(choices.size() == layers.size())
      << choices.size() << " choices for " << layers.size() << " layers";
  Plan plan;
  for (size_t i = 0; i < layers.size(); ++i) {
    NEREUS_CHECK(SupportsScheme(layers[i], choices[i].scheme))
        << DescribeLayer(layers[i]);
    plan.routes.push_back({choices[i].scheme, options.rules.wire});
    plan.explanations.push_back(
        Explain(layers[i], options.cluster, choices[i]));
  }
  return plan;
}

double PlanCost(absl::Span<const LayerSpec> layers, const PlanOptions& options,
                absl::Span<const Route> routes) {
  if (options.rules.cost == CostKind::kTime) {
    const auto placement =
        Placement::Make(layers, static_cast<int>(options.cluster.servers));
    NEREUS_CHECK(placement.ok() && options.time.has_value());
    return Timeline(layers, *placement, options.cluster, *options.time)
        .Play(routes);
  }
  double bytes = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    int64_t elements = 0;
    switch (routes[i].scheme) {
      case Scheme::kServer:
        elements =
            ServerSchemeBothElements(layers[i].parameters, options.cluster);
        break;
      case Scheme::kFactor:
        elements = FactorSchemeElements(layers[i], options.cluster);
        break;
      case Scheme::kRing:
        elements = RingSchemeElements(layers[i].parameters, options.cluster);
        break;
    }
    bytes += static_cast<double>(elements) *
             static_cast<double>(WireBytes(routes[i].wire));
  }
  return bytes;
}

}  // namespace nereus
