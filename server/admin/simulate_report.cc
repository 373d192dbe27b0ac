#include "server/admin/simulate_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/layer_groups.h"
#include "common/plan/scheme.h"
#include "nlohmann/json.hpp"
#include "server/admin/quantity.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBitsPerByte = 8.0;

std::string FusionName(int64_t bytes) {
  return bytes == kNoFusion ? "off" : absl::StrCat(bytes, " bytes");
}

std::string Seconds(absl::Duration time) {
  return absl::StrFormat("%.4f s", absl::ToDoubleSeconds(time));
}

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.3f MB", static_cast<double>(bytes) / 1e6);
}

double SamplesPerSecond(const SimulateReport& report) {
  const double seconds = absl::ToDoubleSeconds(report.result.iteration);
  if (seconds <= 0) return 0.0;
  return static_cast<double>(report.what_if.plan.cluster.workers *
                             report.batch) /
         seconds;
}

std::string FormatQuestion(const SimulateReport& report) {
  const WhatIf& asked = report.what_if;
  std::string text = absl::StrCat(
      report.model, ": ", asked.plan.cluster.workers, " workers, ",
      asked.plan.cluster.servers, " servers, batch ", report.batch, ", scheme ",
      asked.plan.rules.scheme_name(), ", cost ",
      CostKindName(asked.plan.rules.cost), ", wire ",
      asked.plan.rules.wire_name(), ", overlap ",
      OverlapName(asked.job.overlap), ", fusion ",
      FusionName(report.result.fusion_bytes), "\n",
      FormatBitRate(asked.node_rate * kBitsPerByte),
      " a node, each way, latency ", absl::FormatDuration(asked.latency));
  if (asked.jitter > absl::ZeroDuration()) {
    absl::StrAppend(&text, " to ",
                    absl::FormatDuration(asked.latency + asked.jitter));
  }
  if (asked.host_copy > absl::ZeroDuration()) {
    absl::StrAppend(&text, "; copies to host memory and back ",
                    Seconds(asked.host_copy));
  }
  for (const auto& [worker, delay] : asked.delays) {
    absl::StrAppend(&text, "; worker ", worker, " delayed by ", Seconds(delay));
  }
  return text + "\n";
}

Verdict VerdictOn(const SimulateReport& report) {
  const IterationResult& result = report.result;
  Verdict verdict;
  verdict.workers = report.what_if.plan.cluster.workers;
  verdict.iteration_seconds = absl::ToDoubleSeconds(result.iteration);
  verdict.compute_seconds = absl::ToDoubleSeconds(result.compute);
  verdict.single_node_seconds = absl::ToDoubleSeconds(result.single_node);
  verdict.delay_seconds = absl::ToDoubleSeconds(report.late);
  verdict.advice = report.advice;
  return verdict;
}

std::string FormatLayers(const SimulateReport& report) {
  const std::vector<LayerGroup> groups = GroupLayers(
      report.what_if.layers, report.result.plan.routes, report.all_layers);
  size_t width = 5;
  for (const LayerGroup& group : groups) {
    width = std::max(width, group.name.size());
  }
  const auto name_width = static_cast<int>(width);
  std::string text = absl::StrFormat("%-*s  %-6s  %-4s  %12s  %12s  %14s\n",
                                     name_width, "layer", "scheme", "wire",
                                     "forward", "backward", "busiest node");
  for (const LayerGroup& group : groups) {
    LayerTime time;
    int64_t bytes = 0;
    for (const size_t layer : group.layers) {
      time.forward += report.what_if.times[layer].forward;
      time.backward += report.what_if.times[layer].backward;
      bytes += report.result.layer_bytes[layer];
    }
    const Route& route = report.result.plan.routes[group.layers.front()];
    absl::StrAppendFormat(&text, "%-*s  %-6s  %-4s  %12s  %12s  %14s\n",
                          name_width, group.name, SchemeName(route.scheme),
                          WireTypeName(route.wire), Seconds(time.forward),
                          Seconds(time.backward), Megabytes(bytes));
  }
  return text;
}

Json LayerJson(const SimulateReport& report, size_t layer) {
  const LayerSpec& spec = report.what_if.layers[layer];
  const LayerTime& time = report.what_if.times[layer];
  const Plan& plan = report.result.plan;
  return {
      {"name", spec.name},
      {"kind", std::string(LayerKindName(spec.kind))},
      {"scheme", std::string(SchemeName(plan.routes[layer].scheme))},
      {"wire", std::string(WireTypeName(plan.routes[layer].wire))},
      {"reason", plan.explanations[layer].reason},
      {"forward_seconds", absl::ToDoubleSeconds(time.forward)},
      {"backward_seconds", absl::ToDoubleSeconds(time.backward)},
      {"node_bytes", report.result.layer_bytes[layer]},
  };
}

}  // namespace

std::string FormatSimulateText(const SimulateReport& report) {
  const IterationResult& result = report.result;
  const auto& bytes = result.node_bytes;
  const double sum = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  const auto mean =
      static_cast<int64_t>(sum / static_cast<double>(bytes.size()));
  const Verdict verdict = VerdictOn(report);
  const std::string late =
      verdict.delay_seconds > 0
          ? absl::StrCat("  late workers            ",
                         Seconds(absl::Seconds(verdict.delay_seconds)), "\n")
          : "";
  return absl::StrCat(
      FormatVerdict(verdict), "\n", FormatQuestion(report), "\n",
      FormatLayers(report), "\n", "one node alone            ",
      Seconds(result.single_node), "\n", "one iteration             ",
      Seconds(result.iteration), "\n", "  of that computing       ",
      Seconds(result.compute), "\n", late, "  exposed to the network  ",
      Seconds(result.network_exposed - absl::Seconds(verdict.delay_seconds)),
      "\n",
      absl::StrFormat("speed-up over one node    %.2f of %d\n", result.speedup,
                      report.what_if.plan.cluster.workers),
      absl::StrFormat("samples per second        %.1f\n",
                      SamplesPerSecond(report)),
      "bytes sent plus received by a node per iteration: ",
      Megabytes(bytes[result.busiest_node]), " by the busiest (node ",
      result.busiest_node, "), ", Megabytes(mean), " on average\n");
}

std::string FormatSimulateJson(const SimulateReport& report) {
  const WhatIf& asked = report.what_if;
  const IterationResult& result = report.result;
  Json layers = Json::array();
  for (size_t i = 0; i < asked.layers.size(); ++i) {
    layers.push_back(LayerJson(report, i));
  }
  Json delays = Json::object();
  for (const auto& [worker, delay] : asked.delays) {
    delays[absl::StrCat(worker)] = absl::ToDoubleSeconds(delay);
  }
  Json bandwidth;  // null
  if (!std::isinf(asked.node_rate)) bandwidth = asked.node_rate * kBitsPerByte;
  const Json json = {
      {"model", report.model},
      {"workers", asked.plan.cluster.workers},
      {"servers", asked.plan.cluster.servers},
      {"batch", report.batch},
      {"scheme", asked.plan.rules.scheme_name()},
      {"cost", std::string(CostKindName(asked.plan.rules.cost))},
      {"wire", asked.plan.rules.wire_name()},
      {"overlap", std::string(OverlapName(asked.job.overlap))},
      {"quorum", std::string(QuorumName(asked.job.quorum))},
      {"sparsity", asked.job.sparsity},
      {"fusion_bytes", report.result.fusion_bytes == kNoFusion
                           ? Json(nullptr)
                           : Json(report.result.fusion_bytes)},
      {"bandwidth_bits_per_second", bandwidth},
      {"latency_seconds", absl::ToDoubleSeconds(asked.latency)},
      {"jitter_seconds", absl::ToDoubleSeconds(asked.jitter)},
      {"host_copy_seconds", absl::ToDoubleSeconds(asked.host_copy)},
      {"message_seconds", absl::ToDoubleSeconds(asked.message_time)},
      {"delay_seconds", std::move(delays)},
      {"delay_in_turn_seconds", absl::ToDoubleSeconds(asked.delay_in_turn)},
      {"iterations", result.iterations},
      {"verdict", VerdictJson(VerdictOn(report))},
      {"single_node_seconds", absl::ToDoubleSeconds(result.single_node)},
      {"iteration_seconds", absl::ToDoubleSeconds(result.iteration)},
      {"compute_seconds", absl::ToDoubleSeconds(result.compute)},
      {"network_exposed_seconds",
       absl::ToDoubleSeconds(result.network_exposed)},
      {"late_seconds", absl::ToDoubleSeconds(report.late)},
      {"speedup", result.speedup},
      {"samples_per_second", SamplesPerSecond(report)},
      {"node_bytes", result.node_bytes[result.busiest_node]},
      {"busiest_node", result.busiest_node},
      {"bytes_by_node", result.node_bytes},
      {"layers", std::move(layers)},
  };
  // The replacing handler: dump would throw at a name that is not UTF-8.
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

}  // namespace nereus
