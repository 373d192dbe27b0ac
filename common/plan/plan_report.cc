// Reports of a plan, as text for people and as JSON for programs.
// MakePlanReport adds up the totals (PlannedTraffic by the formulas,
// BusiestNodeBytes by the placement); FormatPlanText makes the table and the
// paragraphs below it; FormatPlanJson writes the same figures. Field names of
// the JSON and columns of the table are part of the interface: tests and users'
// scripts read them.

#include "common/plan/plan_report.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/base/text_table.h"
#include "common/plan/cost_model.h"
#include "common/plan/fusion.h"
#include "common/plan/host_map.h"
#include "common/plan/scheme.h"
#include "common/plan/traffic.h"
#include "common/plan/wide_integer.h"
#include "nlohmann/json.hpp"

namespace nereus {

namespace {

constexpr int64_t kElementBytes = sizeof(float);

int64_t ElementsToBytes(int64_t elements) {
  return SaturateToInt64(WideInteger{elements} * kElementBytes);
}

// Traffic of one host's link in one step, sent plus received.
struct Traffic {
  int64_t elements = 0;  // Values.
  int64_t bytes = 0;     // Bytes, by the routes' wire types.
};

// Returns the traffic of `routes`, by the formulas of cost_model.h. For each
// wire type, adds up the elements of all layers that use the servers before it
// applies the formula: the formula divides, and rounding layer by layer would
// lose up to one element for each layer.
Traffic PlannedTraffic(absl::Span<const LayerSpec> layers,
                       absl::Span<const Route> routes,
                       const ClusterShape& cluster) {
  WideInteger elements = 0;
  WideInteger bytes = 0;
  for (const WireType wire : kWireTypes) {
    int64_t by_servers = 0;
    WideInteger moved = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (routes[i].wire != wire) continue;
      if (UsesServers(routes[i].scheme)) {
        by_servers += layers[i].parameters;
      } else {
        moved += SchemeElements(layers[i], routes[i].scheme, cluster);
      }
    }
    moved += ServerSchemeBothElements(by_servers, cluster);
    elements += moved;
    bytes += moved * WireBytes(wire);
  }
  return {SaturateToInt64(elements), SaturateToInt64(bytes)};
}

// Returns the bytes of the host that sends plus receives most. Does not count
// headers, because the formulas of cost_model.h do not count them either.
int64_t BusiestNodeBytes(const PlanReport& report,
                         absl::Span<const Route> routes) {
  const std::vector<int64_t> bytes =
      PredictLinkBytes(report.layers, routes, report.placement,
                       HostMap::Of(report.options.cluster),
                       /*frame_header_bytes=*/0, kChunkElementsMax);
  return *absl::c_max_element(bytes);
}

PlanTotals MakeTotals(const PlanReport& report) {
  const std::vector<Route> server_only(report.layers.size(), {Scheme::kServer});
  const std::vector<Route>& planned = report.plan.routes;
  const ClusterShape& cluster = report.options.cluster;
  PlanTotals totals;
  WideInteger local = 0;
  for (size_t i = 0; i < report.layers.size(); ++i) {
    totals.parameters += report.layers[i].parameters;
    local += report.plan.explanations[i].local_elements;
  }
  totals.local_elements_planned = SaturateToInt64(local);
  totals.chunks = std::ssize(report.placement.chunks());
  const auto by_servers = PlannedTraffic(report.layers, server_only, cluster);
  totals.elements_server_only = by_servers.elements;
  totals.bytes_server_only = by_servers.bytes;
  const auto by_plan = PlannedTraffic(report.layers, planned, cluster);
  totals.elements_planned = by_plan.elements;
  totals.bytes_planned = by_plan.bytes;
  totals.busiest_node_bytes_server_only = BusiestNodeBytes(report, server_only);
  totals.busiest_node_bytes_planned = BusiestNodeBytes(report, planned);
  return totals;
}

// Returns 1234567 as "1,234,567". REQUIRES: value >= 0.
std::string WithSeparators(int64_t value) {
  std::string digits = absl::StrCat(value);
  for (auto i = std::ssize(digits) - 3; i > 0; i -= 3) {
    digits.insert(i, 1, ',');
  }
  return digits;
}

// Returns `bytes` in GB of 1e9 bytes, the unit of networks.
std::string Gigabytes(int64_t bytes) {
  return absl::StrFormat("%.3f GB", static_cast<double>(bytes) / 1e9);
}

// Returns the fusion threshold for people.
std::string FusionText(const Plan& plan, const PlanRules& rules) {
  if (plan.fusion_bytes == kNoFusion) return "off";
  return absl::StrCat(rules.choose_fusion ? "auto, from " : "",
                      plan.fusion_bytes, " bytes");
}

// Adds the row of a group. The row shows the first layer of the group. In
// columns of sums it shows the layer's figure times the number of layers.
void AddGroup(const PlanReport& report, const LayerGroup& group,
              TextTable& table) {
  const size_t layer = group.layers.front();
  const LayerSpec& spec = report.layers[layer];
  const RouteExplanation& why = report.plan.explanations[layer];
  // Adds up the elements of all layers of the group.
  const auto total = [count = std::ssize(group.layers)](int64_t elements) {
    return WithSeparators(SaturateToInt64(WideInteger{elements} * count));
  };
  const bool has_factors = why.factor_elements.has_value();
  const Route& route = report.plan.routes[layer];
  table.Row(
      group.name, LayerKindName(spec.kind), absl::StrCat(spec.m, " x ", spec.n),
      has_factors ? WithSeparators(spec.rows) : "-", total(spec.parameters),
      total(std::ssize(report.placement.layer_chunks(layer))),
      total(why.server_elements),
      has_factors ? total(*why.factor_elements) : "-", total(why.ring_elements),
      SchemeName(route.scheme), WireTypeName(route.wire));
}

// Returns "a worker" or "4 workers".
std::string Count(int64_t count, absl::string_view noun) {
  return count == 1 ? absl::StrCat("a ", noun)
                    : absl::StrCat(count, " ", noun, "s");
}

// Returns the lines above the table: the arguments of the plan, and the meaning
// of the figures.
std::string FormatHeading(const PlanReport& report) {
  const ClusterShape& cluster = report.options.cluster;
  const PlanRules& rules = report.options.rules;
  const bool shares = cluster.shares_hosts();
  std::string text = absl::StrCat(
      report.model, ": ", cluster.workers, " workers",
      cluster.hosts == 0 ? ""
                         : absl::StrCat(" on ", Count(cluster.hosts, "host")),
      ", ", cluster.servers, " servers, batch ", report.batch, ", scheme ",
      rules.scheme_name(), ", cost ", CostKindName(rules.cost), ", wire ",
      rules.wire_name(), ", fusion ", FusionText(report.plan, rules),
      "\nBy servers, factors, ring: elements that a ", shares ? "host" : "node",
      " sends plus receives per step for\nthe layer's M x N matrix; the total "
      "counts biases too.\n");
  if (shares) {
    absl::StrAppend(
        &text,
        "The workers of a host add up their gradients in memory, before "
        "the host sends.\n");
  }
  return text;
}

// Returns the paragraph below the table.
std::string FormatTotals(const PlanReport& report) {
  const PlanTotals& totals = report.totals;
  const int64_t server_only = totals.bytes_server_only;
  const int64_t planned = totals.bytes_planned;
  const ClusterShape& cluster = report.options.cluster;
  const bool shares = cluster.shares_hosts();
  std::string text =
      absl::StrCat("A ", shares ? "host" : "node", " with ",
                   Count(cluster.host_workers_most(), "worker"), " and ",
                   Count(cluster.host_servers_most(), "server"),
                   " sends plus receives per step: ", Gigabytes(server_only),
                   " if all goes through the servers, ", Gigabytes(planned),
                   " by this plan");
  if (planned > 0) {
    absl::StrAppendFormat(
        &text, " (ratio %.2f)",
        static_cast<double>(server_only) / static_cast<double>(planned));
  }
  absl::StrAppend(
      &text, ".\nThe busiest ", shares ? "host" : "node",
      ", by the placement: ", Gigabytes(totals.busiest_node_bytes_server_only),
      ", ", Gigabytes(totals.busiest_node_bytes_planned), ".\n");
  if (shares) {
    absl::StrAppend(&text, "Workers of a host hand each other ",
                    WithSeparators(totals.local_elements_planned),
                    " elements through memory by this plan.\n");
  }
  int64_t least = report.placement.shard_elements(0);
  int64_t most = least;
  for (int shard = 1; shard < report.placement.shards(); ++shard) {
    least = std::min(least, report.placement.shard_elements(shard));
    most = std::max(most, report.placement.shard_elements(shard));
  }
  absl::StrAppend(&text, "A shard owns ", WithSeparators(least), " to ",
                  WithSeparators(most), " elements.\n");
  return text;
}

// Returns a layer of the JSON report.
nlohmann::ordered_json LayerJson(const PlanReport& report, size_t layer) {
  const LayerSpec& spec = report.layers[layer];
  const RouteExplanation& why = report.plan.explanations[layer];
  nlohmann::ordered_json factor;  // null
  if (why.factor_elements.has_value()) factor = *why.factor_elements;
  nlohmann::ordered_json direct;  // null
  if (SupportsScheme(spec, Scheme::kDirect)) direct = why.direct_elements;
  return {
      {"name", spec.name},
      {"kind", std::string(LayerKindName(spec.kind))},
      {"m", spec.m},
      {"n", spec.n},
      {"k", spec.rows},
      {"parameters", spec.parameters},
      {"scheme", std::string(SchemeName(report.plan.routes[layer].scheme))},
      {"wire", std::string(WireTypeName(report.plan.routes[layer].wire))},
      {"reason", why.reason},
      {"elements",
       {{"server", why.server_elements},
        {"factor", factor},
        {"ring", why.ring_elements},
        {"direct", direct}}},
      {"chunks", report.placement.layer_chunks(layer).size()},
  };
}

// Adds the fields about hosts, unless ClusterShape::hosts is 0.
void AddHosts(const PlanReport& report, nlohmann::ordered_json& json) {
  const ClusterShape& cluster = report.options.cluster;
  if (cluster.hosts == 0) return;
  const HostMap map = HostMap::Of(cluster);
  json["hosts"] = cluster.hosts;
  nlohmann::ordered_json& workers = json["workers_by_host"];
  for (int64_t host = 0; host < map.hosts(); ++host) {
    workers.push_back(map.WorkersAt(host));
  }
  json["totals"]["local_elements_planned"] =
      report.totals.local_elements_planned;
  for (size_t i = 0; i < report.layers.size(); ++i) {
    json["layers"][i]["local_elements"] =
        report.plan.explanations[i].local_elements;
  }
}

}  // namespace

absl::StatusOr<PlanReport> MakePlanReport(std::string model, int64_t batch,
                                          std::vector<LayerSpec> layers,
                                          const PlanOptions& options,
                                          std::optional<Plan> plan) {
  if (!plan.has_value()) plan = NEREUS_TRY(MakePlan(layers, options));
  Placement placement = NEREUS_TRY(MakePlacement(layers, options));
  PlanReport report{std::move(model),  batch,
                    std::move(layers), options,
                    *std::move(plan),  std::move(placement),
                    PlanTotals()};
  report.totals = MakeTotals(report);
  return report;
}

std::string FormatPlanText(const PlanReport& report, bool all_layers) {
  TextTable table("llrrrrrrrll");
  table.Row("layer", "kind", "M x N", "K", "parameters", "chunks", "by servers",
            "by factors", "by ring", "scheme", "wire");
  const std::vector<LayerGroup> groups =
      GroupLayers(report.layers, report.plan.routes, all_layers);
  for (const LayerGroup& group : groups) {
    AddGroup(report, group, table);
  }
  table.Row("total", "", "", "", WithSeparators(report.totals.parameters),
            WithSeparators(report.totals.chunks),
            WithSeparators(report.totals.elements_server_only), "", "", "", "");
  std::string text = absl::StrCat(FormatHeading(report), "\n", table.Text(),
                                  "\n", FormatTotals(report));
  text += "\nLayers that could go by factors:\n";
  for (const LayerGroup& group : groups) {
    const size_t layer = group.layers.front();
    if (!SupportsScheme(report.layers[layer], Scheme::kFactor)) continue;
    absl::StrAppend(&text, "  ", group.name, ": ",
                    SchemeName(report.plan.routes[layer].scheme), " (",
                    report.plan.explanations[layer].reason, ")\n");
  }
  return text;
}

std::string FormatPlanJson(const PlanReport& report) {
  const PlanTotals& totals = report.totals;
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (size_t i = 0; i < report.layers.size(); ++i) {
    layers.push_back(LayerJson(report, i));
  }
  nlohmann::ordered_json shard_bytes = nlohmann::ordered_json::array();
  for (int shard = 0; shard < report.placement.shards(); ++shard) {
    shard_bytes.push_back(
        ElementsToBytes(report.placement.shard_elements(shard)));
  }
  nlohmann::ordered_json json = {
      {"model", report.model},
      {"workers", report.options.cluster.workers},
      {"servers", report.options.cluster.servers},
      {"batch", report.batch},
      {"cost", std::string(CostKindName(report.options.rules.cost))},
      {"scheme", report.options.rules.scheme_name()},
      {"wire", report.options.rules.wire_name()},
      {"fusion_bytes", report.plan.fusion_bytes == kNoFusion
                           ? nlohmann::ordered_json()
                           : nlohmann::ordered_json(report.plan.fusion_bytes)},
      {"layers", std::move(layers)},
      {"totals",
       {{"parameters", totals.parameters},
        {"chunks", totals.chunks},
        {"elements_server_only", totals.elements_server_only},
        {"elements_planned", totals.elements_planned},
        {"bytes_per_node_server_only", totals.bytes_server_only},
        {"bytes_per_node_planned", totals.bytes_planned},
        {"busiest_node_bytes_server_only",
         totals.busiest_node_bytes_server_only},
        {"busiest_node_bytes_planned", totals.busiest_node_bytes_planned}}},
      {"shard_bytes", std::move(shard_bytes)},
  };
  AddHosts(report, json);
  return FormatJson(json);
}

std::vector<LayerGroup> GroupLayers(absl::Span<const LayerSpec> layers,
                                    absl::Span<const Route> routes,
                                    bool each_alone) {
  // Returns the properties that are the same for all layers of a group.
  const auto key_of = [&](size_t i) {
    const LayerSpec& layer = layers[i];
    return std::tuple(layer.kind, layer.m, layer.n, layer.parameters,
                      layer.rows, layer.has_factors, routes[i].scheme,
                      routes[i].wire, each_alone ? i : 0);
  };
  std::vector<LayerGroup> groups;
  absl::flat_hash_map<decltype(key_of(0)), size_t> group_of;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto [at, is_first] = group_of.emplace(key_of(i), groups.size());
    if (is_first) groups.push_back({{}, layers[i].name});
    groups[at->second].layers.push_back(i);
  }
  for (LayerGroup& group : groups) {
    const size_t more = group.layers.size() - 1;
    if (more > 0) absl::StrAppend(&group.name, " and ", more, " like it");
  }
  return groups;
}

}  // namespace nereus
