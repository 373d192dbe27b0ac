#include "common/plan/planner.h"

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/names.h"
#include "common/base/status.h"
#include "common/plan/placement.h"
#include "common/plan/time_cost.h"

// The planner. MakePlan checks its arguments and asks Choose for the scheme of
// each layer. Choose takes the first case that applies: there is one worker; a
// rule requires the servers; the cost decides (ChooseByCost); a scheme is
// forced. ChooseByCost uses Poseidon's algorithm 1 for bytes, and a search over
// predicted iterations (time_cost.h) for time. Explain turns each choice into
// the sentence that reports show.
//
// PlanCost rates routes that exist already: a running job changes its plan only
// if a new plan costs enough less than the old one.

namespace nereus {
namespace {

// Returns the reason why a layer cannot go by `scheme`, whatever the rules are.
// REQUIRES: it does not support the scheme.
std::string WhyNot(const LayerSpec& layer, Scheme scheme) {
  const int64_t most =
      scheme == Scheme::kDirect ? kDirectParametersMax : kPeerParametersMax;
  if (layer.parameters > most) {
    return absl::StrCat("it has more than ", most, " parameters");
  }
  if (layer.has_factors && layer.rows == kRowsNotKnown) {
    return "its rows are not known yet";
  }
  if (layer.has_factors && layer.rows == kFactorsLost) {
    return "a worker says that its gradient is no product of factors";
  }
  return "its gradient has no factors";
}

// Chooses by Poseidon's algorithm 1 (BestScheme): the scheme with fewer
// elements wins; if both have as many, factors win. Rings are no candidates:
// the paper has no rings, and with a server on each host a ring moves as many
// elements as the servers do. Elements that stay within a host do not count,
// because no link carries them.
SchemeChoice ChooseByBytes(const LayerSpec& layer, const ClusterShape& cluster,
                           const std::string& why_no_factors) {
  if (!SupportsScheme(layer, Scheme::kFactor)) {
    return {Scheme::kServer, WhyNot(layer, Scheme::kFactor)};
  }
  if (!why_no_factors.empty()) return {Scheme::kServer, why_no_factors};
  if (!FactorsMoveNoMore(layer, cluster)) {
    return {Scheme::kServer, "factors would move more"};
  }
  const bool less = FactorSchemeElements(layer, cluster) <
                    ServerSchemeBothElements(layer.m * layer.n, cluster);
  return {Scheme::kFactor, less ? "factors move less" : "factors move no more"};
}

// Chooses by PlanRules::cost: by bytes or by time.
absl::StatusOr<PlanChoice> ChooseByCost(absl::Span<const LayerSpec> layers,
                                        const PlanOptions& options) {
  const PlanRules& rules = options.rules;
  if (rules.cost == CostKind::kTime) {
    if (!options.time.has_value()) {
      return InvalidArgumentError(
          "cost time needs to know what links carry and what layers compute");
    }
    const Placement placement = NEREUS_TRY(MakePlacement(layers, options));
    return ChooseByTime(layers, placement, options.cluster, *options.time,
                        rules);
  }
  PlanChoice choices;
  for (const LayerSpec& layer : layers) {
    choices.layers.push_back(
        options.cluster.worker_hosts() == 1
            ? SchemeChoice{Scheme::kServer,
                           "one host has no other host to send to"}
            : ChooseByBytes(layer, options.cluster, rules.no_factors));
  }
  return choices;
}

// Returns the forced scheme if the layer supports it, else the servers.
SchemeChoice ForcedChoice(const LayerSpec& layer, Scheme forced) {
  if (!SupportsScheme(layer, forced)) {
    return {Scheme::kServer, WhyNot(layer, forced)};
  }
  return {forced, absl::StrCat("scheme ", SchemeName(forced), " is forced")};
}

// Returns the choice for a worker without peers, by PlanRules::lone_stays.
PlanChoice StaysWithWorker(absl::Span<const LayerSpec> layers) {
  const auto smallest =
      absl::c_min_element(layers, [](const LayerSpec& a, const LayerSpec& b) {
        return a.parameters < b.parameters;
      });
  PlanChoice choices;
  for (const LayerSpec& layer : layers) {
    if (&layer == &*smallest) {
      choices.layers.push_back(
          {Scheme::kServer,
           "planned for one worker: the servers count its steps by its "
           "smallest layer"});
    } else if (SupportsScheme(layer, Scheme::kRing)) {
      choices.layers.push_back(
          {Scheme::kRing,
           "planned for one worker: its gradients stay with it"});
    } else {
      choices.layers.push_back({Scheme::kServer, WhyNot(layer, Scheme::kRing)});
    }
  }
  return choices;
}

// Returns the choice of the first case below that applies.
absl::StatusOr<PlanChoice> Choose(absl::Span<const LayerSpec> layers,
                                  const PlanOptions& options) {
  const auto servers = [&](const std::string& why) {
    return std::vector<SchemeChoice>(layers.size(), {Scheme::kServer, why});
  };
  if (options.cluster.workers == 1) {
    if (options.rules.lone_stays && options.rules.servers_only.empty()) {
      return StaysWithWorker(layers);
    }
    return PlanChoice{servers("one worker has no peer to send to"), {}};
  }
  if (const std::string& why = options.rules.servers_only; !why.empty()) {
    return PlanChoice{servers(why), {}};
  }
  if (options.rules.choose()) return ChooseByCost(layers, options);
  PlanChoice choices;
  for (const LayerSpec& layer : layers) {
    choices.layers.push_back(ForcedChoice(layer, *options.rules.forced));
  }
  return choices;
}

// Returns the part of the reason that names elements: ": per node and step
// ...". Where workers share hosts, each scheme has two figures: elements on the
// host's link, and elements between its workers.
std::string FiguresText(const LayerSpec& layer, const ClusterShape& cluster,
                        const RouteExplanation& figures) {
  const bool shares = cluster.shares_hosts();
  std::string text = absl::StrCat(
      ": per ", shares ? "host" : "node", " and step the servers' way moves ",
      figures.server_elements, " elements", shares ? " over the link" : "");
  const auto local = [&](Scheme scheme) {
    return LocalElements(layer, scheme, cluster);
  };
  if (figures.factor_elements.has_value()) {
    absl::StrAppend(&text, ", factors ", *figures.factor_elements);
  }
  if (!shares) return text;
  absl::StrAppend(&text, "; within the host ", local(Scheme::kServer));
  if (figures.factor_elements.has_value()) {
    absl::StrAppend(&text, " and ", local(Scheme::kFactor));
  }
  return absl::StrCat(text, " through memory");
}

// Returns the explanation of a choice. The elements are those of the matrix
// without the bias, as in the paper's table.
RouteExplanation Explain(const LayerSpec& layer, const ClusterShape& cluster,
                         const SchemeChoice& choice, bool by_time) {
  RouteExplanation explanation;
  explanation.server_elements =
      ServerSchemeBothElements(layer.m * layer.n, cluster);
  explanation.ring_elements = RingSchemeElements(layer.m * layer.n, cluster);
  explanation.direct_elements =
      DirectSchemeElements(layer.m * layer.n, cluster);
  if (SupportsScheme(layer, Scheme::kFactor)) {
    explanation.factor_elements = FactorSchemeElements(layer, cluster);
  }
  explanation.local_elements = LocalElements(layer, choice.scheme, cluster);
  explanation.reason = choice.why;
  const bool may_get_factors = layer.has_factors && !layer.may_send_factors();
  if (by_time && may_get_factors) {
    const std::string why = WhyNot(layer, Scheme::kFactor);
    if (choice.why.find(why) == std::string::npos) {
      absl::StrAppend(&explanation.reason, "; ", why);
    }
  }
  if (!by_time) explanation.reason += FiguresText(layer, cluster, explanation);
  return explanation;
}

constexpr Named<CostKind> kCostNames[] = {{CostKind::kBytes, "bytes"},
                                          {CostKind::kTime, "time"}};

}  // namespace

absl::string_view CostKindName(CostKind kind) {
  return NameOf<kCostNames>(kind);
}

absl::Status PlanRules::Validate() const {
  if (choose_wire && cost != CostKind::kTime) {
    return InvalidArgumentError(
        "wire auto needs cost time: by bytes alone, 16-bit values always win");
  }
  // Refuses choose_wire if the planner could never choose a wire type. The
  // planner needs times for this choice, and workers measure times while the
  // job runs. A job that keeps its first plan never uses these times.
  for (const std::string& why : {servers_only, fixed}) {
    if (!choose_wire || why.empty()) continue;
    return InvalidArgumentError("wire auto has nothing to choose: ", why);
  }
  const bool fits = !forced.has_value() || UsesServers(*forced);
  if (!no_factors.empty() && forced == Scheme::kFactor) {
    return InvalidArgumentError("scheme factor is forced: ", no_factors);
  }
  if (servers_only.empty() || fits) return absl::OkStatus();
  return InvalidArgumentError("scheme ", SchemeName(*forced),
                              " does not use the servers: ", servers_only);
}

std::string PlanRules::scheme_name() const {
  return forced.has_value() ? std::string(SchemeName(*forced)) : "auto";
}

std::string PlanRules::wire_name() const {
  return choose_wire ? "auto" : std::string(WireTypeName(wire));
}

int64_t FusionFor(absl::Span<const LayerSpec> layers,
                  const PlanOptions& options, absl::Span<const Route> routes) {
  const PlanRules& rules = options.rules;
  if (!rules.choose_fusion || rules.cost != CostKind::kTime ||
      !options.time.has_value()) {
    return rules.fusion_bytes;
  }
  const auto placement = MakePlacement(layers, options);
  NEREUS_CHECK(placement.ok()) << placement.status();
  return BestFusion(
      Timeline(layers, *placement, options.cluster, *options.time), routes);
}

bool MayUseFactors(const PlanRules& rules, absl::Span<const LayerSpec> layers) {
  if (rules.forced.value_or(Scheme::kFactor) != Scheme::kFactor ||
      !rules.no_factors.empty() || !rules.servers_only.empty()) {
    return false;
  }
  return absl::c_any_of(layers, [](const LayerSpec& layer) {
    return layer.has_factors && layer.rows != kFactorsLost;
  });
}

absl::StatusOr<Placement> MakePlacement(absl::Span<const LayerSpec> layers,
                                        const PlanOptions& options) {
  return Placement::Make(layers, static_cast<int>(options.cluster.servers),
                         options.rules.chunk_bytes);
}

absl::StatusOr<Plan> MakePlan(absl::Span<const LayerSpec> layers,
                              const PlanOptions& options) {
  NEREUS_TRY(ValidateLayers(layers));
  NEREUS_TRY(options.cluster.Validate());
  NEREUS_TRY(options.rules.Validate());
  if (options.time.has_value()) {
    NEREUS_TRY(options.time->Validate(layers));
  }
  const PlanChoice chosen = NEREUS_TRY(Choose(layers, options));
  const std::vector<SchemeChoice>& choices = chosen.layers;
  NEREUS_CHECK(choices.size() == layers.size())
      << choices.size() << " choices for " << layers.size() << " layers";
  Plan plan;
  for (size_t i = 0; i < layers.size(); ++i) {
    NEREUS_CHECK(SupportsScheme(layers[i], choices[i].scheme))
        << DescribeLayer(layers[i]);
    plan.routes.push_back({choices[i].scheme, options.rules.choose_wire
                                                  ? choices[i].wire
                                                  : options.rules.wire});
    plan.explanations.push_back(Explain(layers[i], options.cluster, choices[i],
                                        options.rules.cost == CostKind::kTime));
  }
  plan.fusion_bytes = chosen.fusion_bytes.has_value()
                          ? *chosen.fusion_bytes
                          : FusionFor(layers, options, plan.routes);
  return plan;
}

double PlanCost(absl::Span<const LayerSpec> layers, const PlanOptions& options,
                absl::Span<const Route> routes) {
  if (options.rules.cost == CostKind::kTime) {
    const auto placement = MakePlacement(layers, options);
    NEREUS_CHECK(placement.ok() && options.time.has_value());
    return Timeline(layers, *placement, options.cluster, *options.time)
        .Play(routes, FusionFor(layers, options, routes));
  }
  double bytes = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t elements =
        SchemeElements(layers[i], routes[i].scheme, options.cluster);
    bytes += static_cast<double>(elements) *
             static_cast<double>(WireBytes(routes[i].wire));
  }
  return bytes;
}

}  // namespace nereus
