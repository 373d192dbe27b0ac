#include "common/plan/planner.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

constexpr char kNoFactors[] = "its gradient has no factors";

class BytesCost : public CostFunction {
 public:
  absl::StatusOr<std::vector<SchemeChoice>> Choose(
      absl::Span<const LayerSpec> layers,
      const ClusterShape& cluster) const override {
    std::vector<SchemeChoice> choices;
    choices.reserve(layers.size());
    for (const LayerSpec& layer : layers) {
      choices.push_back(ChooseForLayer(layer, cluster));
    }
    return choices;
  }

 private:
  static SchemeChoice ChooseForLayer(const LayerSpec& layer,
                                     const ClusterShape& cluster) {
    if (!SupportsScheme(layer, Scheme::kFactor)) {
      return {Scheme::kServer, kNoFactors};
    }
    if (!FactorsMoveNoMore(layer, cluster)) {
      return {Scheme::kServer, "factors would move more"};
    }
    const bool less = FactorSchemeElements(layer, cluster) <
                      ServerSchemeBothElements(layer.m * layer.n, cluster);
    return {Scheme::kFactor,
            less ? "factors move less" : "factors move no more"};
  }
};

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
  if (!options.rules.forced.has_value()) {
    std::vector<SchemeChoice> choices;
    NEREUS_ASSIGN_OR_RETURN(
        choices,
        MakeCostFunction(options.rules.cost)->Choose(layers, options.cluster));
    const std::string& why = options.rules.no_factors;
    for (SchemeChoice& choice : choices) {
      if (choice.scheme != Scheme::kFactor || why.empty()) continue;
      choice = {Scheme::kServer, why};
    }
    return choices;
  }
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
  }
  return "unknown";
}

absl::StatusOr<CostKind> ParseCostKind(absl::string_view name) {
  if (name == CostKindName(CostKind::kBytes)) return CostKind::kBytes;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown cost \"", absl::CHexEscape(name.substr(0, 64)),
                   "\", known is bytes"));
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

std::unique_ptr<const CostFunction> MakeCostFunction(CostKind kind) {
  switch (kind) {
    case CostKind::kBytes:
      return std::make_unique<BytesCost>();
  }
  NEREUS_CHECK(false) << "cost kind " << static_cast<int>(kind);
  return nullptr;
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

}  // namespace nereus
