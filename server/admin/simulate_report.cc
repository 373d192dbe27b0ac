#include "server/admin/simulate_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/json_text.h"
#include "common/base/text_table.h"
#include "common/plan/plan_report.h"
#include "common/plan/scheme.h"
#include "nlohmann/json.hpp"
#include "server/admin/quantity.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

double ToSeconds(absl::Duration time) { return absl::ToDoubleSeconds(time); }

// Returns the time in a unit that suits layers, which take from microseconds to
// a second.
std::string Milliseconds(absl::Duration time) {
  return absl::StrFormat("%.3f ms", absl::ToDoubleMilliseconds(time));
}

// Returns the throughput of the whole cluster; 0 if an iteration takes no time.
double SamplesPerSecond(const SimulateReport& report) {
  const double seconds = ToSeconds(report.result.iteration);
  if (seconds <= 0) return 0.0;
  return static_cast<double>(report.what_if.plan.cluster.workers *
                             report.batch) /
         seconds;
}

// Returns the question in a few lines, so that a saved report explains itself.
// Leaves out jitter, copies and delays that are zero. Only the JSON has message
// times, delays in turn, the quorum and sparsity.
std::string FormatQuestion(const SimulateReport& report) {
  const WhatIf& asked = report.what_if;
  std::string text = absl::StrCat(
      report.model, ": ", asked.plan.cluster.workers, " workers",
      asked.plan.cluster.hosts == 0
          ? ""
          : absl::StrCat(" on ", asked.plan.cluster.hosts, " nodes"),
      ", ", asked.plan.cluster.servers, " servers, batch ", report.batch,
      ", scheme ", asked.plan.rules.scheme_name(), ", cost ",
      CostKindName(asked.plan.rules.cost), ", wire ",
      asked.plan.rules.wire_name(), ", overlap ",
      OverlapName(asked.job.overlap),
      asked.waits_in_forward ? "" : ", waits at the end", ", fusion ",
      report.result.fusion_bytes == kNoFusion
          ? "off"
          : absl::StrCat(report.result.fusion_bytes, " bytes"),
      "\n", FormatBitRate(asked.node_rate * kBitsPerByte),
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
  if (asked.plan.cluster.shares_hosts()) {
    absl::StrAppend(&text,
                    asked.job.rounds.quorum == Quorum::kAll
                        ? "\nWorkers of a node add up their gradients in "
                          "memory, and share its link"
                        : "\nWorkers of a node share its link, and each sends "
                          "by itself, because rounds are partial");
    if (!std::isinf(asked.memory_rate)) {
      absl::StrAppend(&text, "; ",
                      FormatBitRate(asked.memory_rate * kBitsPerByte),
                      " between processes of a node");
    }
  }
  return text + "\n";
}

// Returns the diagnosis of the iteration.
Diagnosis Diagnose(const SimulateReport& report) {
  const IterationResult& result = report.result;
  Diagnosis diagnosis;
  diagnosis.workers = report.what_if.plan.cluster.workers;
  diagnosis.hosts = report.what_if.plan.cluster.hosts;
  diagnosis.iteration_seconds = ToSeconds(result.iteration);
  diagnosis.compute_seconds = ToSeconds(result.compute);
  diagnosis.single_node_seconds = ToSeconds(result.single_node);
  diagnosis.delay_seconds = ToSeconds(report.late);
  diagnosis.advice = report.advice;
  return diagnosis;
}

// Returns a table with one line for each group of equal layers, which shows
// their sums.
std::string FormatLayers(const SimulateReport& report) {
  const std::vector<LayerGroup> groups = GroupLayers(
      report.what_if.layers, report.result.plan.routes, report.all_layers);
  TextTable table("lllrrr");
  table.Row("layer", "scheme", "wire", "forward", "backward", "busiest node");
  for (const LayerGroup& group : groups) {
    LayerTime time;
    int64_t bytes = 0;
    for (const size_t layer : group.layers) {
      time.forward += report.what_if.times[layer].forward;
      time.backward += report.what_if.times[layer].backward;
      bytes += report.result.layer_bytes[layer];
    }
    const Route& route = report.result.plan.routes[group.layers.front()];
    table.Row(group.name, SchemeName(route.scheme), WireTypeName(route.wire),
              Milliseconds(time.forward), Milliseconds(time.backward),
              Megabytes(bytes));
  }
  return table.Text();
}

// Returns one layer: its route with the reason, its times, its bytes.
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
      {"forward_seconds", ToSeconds(time.forward)},
      {"backward_seconds", ToSeconds(time.backward)},
      {"node_bytes", report.result.layer_bytes[layer]},
  };
}

// Share of its time for which the device, or the link, counts as busy always.
constexpr double kBusy = 0.97;

// Returns what limits jobs that take turns: "device", "link" or "waiting".
std::string LimitOf(const SharedReport& shared) {
  double device = 0;
  double link = 0;
  for (const SharedReport::Job& job : shared.jobs) {
    device += job.times.compute / job.turns;
    link += job.times.link / job.turns;
  }
  if (link >= kBusy) return "link";
  return device >= kBusy ? "device" : "waiting";
}

// Returns the number of steps that the jobs do, by their `seconds` of a step,
// relative to the steps that they would do in the same time one after the
// other.
double GainOf(const SharedReport& shared, double SharedReport::Job::*seconds) {
  double gain = 0;
  for (const SharedReport::Job& job : shared.jobs) {
    gain += job.times.alone / (job.*seconds);
  }
  return gain;
}

std::string FormatShared(const SharedReport& shared) {
  if (shared.jobs.empty()) return "";
  TextTable table("lrrrrr");
  table.Row("a step of", "computing", "link", "alone", "all at once",
            "in turns");
  for (const SharedReport::Job& job : shared.jobs) {
    table.Row(job.name, Seconds(job.times.compute), Seconds(job.times.link),
              Seconds(job.times.alone), Seconds(job.at_once),
              Seconds(job.turns));
  }
  const std::string limit = LimitOf(shared);
  const double at_once = GainOf(shared, &SharedReport::Job::at_once);
  const double turns = GainOf(shared, &SharedReport::Job::turns);
  return absl::StrFormat(
      "\nJobs that share the devices of all nodes:\n%s"
      "In turns (--share) the jobs do %.2f times the steps that they would do "
      "one after the other in the same time; all at once, %.2f times. %s%s\n",
      table.Text(), turns, at_once,
      limit == "link" ? "The link is busy all the time: no order of computing "
                        "helps more, but fewer bytes do (--wire=auto)."
      : limit == "device" ? "The device is busy all the time."
                          : "Neither the device nor the link is busy all the "
                            "time: each job waits for its own gradients.",
      turns < at_once ? " Turns do not help here." : "");
}

Json SharedJson(const SharedReport& shared) {
  Json jobs = Json::array();
  for (const SharedReport::Job& job : shared.jobs) {
    jobs.push_back({{"name", job.name},
                    {"compute_seconds", job.times.compute},
                    {"link_seconds", job.times.link},
                    {"alone_seconds", job.times.alone},
                    {"at_once_seconds", job.at_once},
                    {"turns_seconds", job.turns}});
  }
  return {{"jobs", std::move(jobs)},
          {"at_once_gain", GainOf(shared, &SharedReport::Job::at_once)},
          {"turns_gain", GainOf(shared, &SharedReport::Job::turns)},
          {"limit", LimitOf(shared)}};
}

}  // namespace

SharedReport ShareDevices(std::vector<SharedReport::Job> jobs) {
  std::vector<SharingJob> times;
  for (const SharedReport::Job& job : jobs) times.push_back(job.times);
  const auto at_once = PlayShared(times, Sharing::kAtOnce);
  const auto turns = PlayShared(times, Sharing::kTurns);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].at_once = at_once[i];
    jobs[i].turns = turns[i];
  }
  return {std::move(jobs)};
}

std::string FormatSimulateText(const SimulateReport& report) {
  const IterationResult& result = report.result;
  const auto& bytes = result.node_bytes;
  const double sum = absl::c_accumulate(bytes, 0.0);
  const auto mean =
      static_cast<int64_t>(sum / static_cast<double>(bytes.size()));
  const std::string late = report.late > absl::ZeroDuration()
                               ? absl::StrCat("  late workers            ",
                                              Seconds(report.late), "\n")
                               : "";
  const bool shares = report.what_if.plan.cluster.shares_hosts();
  const char* const single = shares ? "worker" : "node";
  return absl::StrFormat(
      "%s\n%s\n%s\n"
      "%-26s%s\n"
      "one iteration             %s\n"
      "  computing               %s\n"
      "%s"
      "  exposed to the network  %s\n"
      "%-26s%.2f of %d\n"
      "samples per second        %.1f\n"
      "bytes sent plus received by a node per iteration: %s by the busiest "
      "(node %d), %s on average\n%s",
      FormatDiagnosis(Diagnose(report)), FormatQuestion(report),
      FormatLayers(report), absl::StrCat("one ", single, " alone"),
      Seconds(result.single_node), Seconds(result.iteration),
      Seconds(result.compute), late,
      Seconds(result.network_exposed - report.late),
      absl::StrCat("speed-up over one ", single), result.speedup,
      report.what_if.plan.cluster.workers, SamplesPerSecond(report),
      Megabytes(bytes[result.busiest_node]), result.busiest_node,
      Megabytes(mean), FormatShared(report.shared));
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
    delays[absl::StrCat(worker)] = ToSeconds(delay);
  }
  Json bandwidth;  // null
  if (!std::isinf(asked.node_rate)) bandwidth = asked.node_rate * kBitsPerByte;
  Json json = {
      {"model", report.model},
      {"workers", asked.plan.cluster.workers},
      {"servers", asked.plan.cluster.servers},
      {"batch", report.batch},
      {"scheme", asked.plan.rules.scheme_name()},
      {"cost", std::string(CostKindName(asked.plan.rules.cost))},
      {"wire", asked.plan.rules.wire_name()},
      {"overlap", std::string(OverlapName(asked.job.overlap))},
      {"waits_in_forward", asked.waits_in_forward},
      {"quorum", std::string(QuorumName(asked.job.rounds.quorum))},
      {"sparsity", asked.job.sparsity.share},
      {"fusion_bytes", report.result.fusion_bytes == kNoFusion
                           ? Json(nullptr)
                           : Json(report.result.fusion_bytes)},
      {"bandwidth_bits_per_second", bandwidth},
      {"latency_seconds", ToSeconds(asked.latency)},
      {"jitter_seconds", ToSeconds(asked.jitter)},
      {"host_copy_seconds", ToSeconds(asked.host_copy)},
      {"message_seconds", ToSeconds(asked.message_time)},
      {"delay_seconds", std::move(delays)},
      {"delay_in_turn_seconds", ToSeconds(asked.delay_in_turn)},
      {"iterations", result.iterations},
      {"verdict", DiagnosisJson(Diagnose(report))},
      {"single_node_seconds", ToSeconds(result.single_node)},
      {"iteration_seconds", ToSeconds(result.iteration)},
      {"compute_seconds", ToSeconds(result.compute)},
      {"network_exposed_seconds", ToSeconds(result.network_exposed)},
      {"late_seconds", ToSeconds(report.late)},
      {"speedup", result.speedup},
      {"samples_per_second", SamplesPerSecond(report)},
      {"node_bytes", result.node_bytes[result.busiest_node]},
      {"busiest_node", result.busiest_node},
      {"bytes_by_node", result.node_bytes},
      {"layers", std::move(layers)},
  };
  if (asked.plan.cluster.hosts != 0) {
    json["hosts"] = asked.plan.cluster.hosts;
    json["memory_bits_per_second"] =
        std::isinf(asked.memory_rate) ? Json(nullptr)
                                      : Json(asked.memory_rate * kBitsPerByte);
  }
  if (!report.shared.jobs.empty()) json["shared"] = SharedJson(report.shared);
  return FormatJson(json);
}

}  // namespace nereus
