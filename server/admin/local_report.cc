// Report of `nereusctl local`, made from the results of all workers.
//
// MakeLocalReport checks that the results belong to one job (SortAndCheck,
// AgreedLayers, CheckRoutes), makes the plan again, and sums up. In a job that
// was not disturbed, CountNodeBytes counts the bytes of each node, and predicts
// them. FormatLocalText and FormatLocalJson show the same figures.

#include "server/admin/local_report.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/base/text_table.h"
#include "nlohmann/json.hpp"
#include "server/admin/quantity.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

template <typename... Parts>
absl::Status Contradiction(const Parts&... parts) {
  return InternalError(parts...);
}

// Checks that one worker reports traffic only with members of the job, so that
// CountNodeBytes may index by rank.
absl::Status CheckTraffic(const JobSpec& spec, const WorkerResult& worker) {
  for (const WorkerTraffic& traffic : worker.traffic) {
    const int ranks = traffic.is_shard ? spec.shards : spec.workers;
    if (traffic.rank < ranks) continue;
    return Contradiction("worker ", worker.rank, " reported traffic with ",
                         traffic.is_shard ? "shard " : "worker ", traffic.rank,
                         ", the job has ", ranks);
  }
  return absl::OkStatus();
}

// Sorts the results by rank, and checks that they belong to one job. In a
// disturbed job, ranks may have gaps and steps may differ, so the results are
// sorted by process, and ranks and steps are not checked.
absl::Status SortAndCheck(const JobSpec& spec, bool is_disturbed,
                          LocalOutcome& outcome) {
  std::vector<WorkerResult>& workers = outcome.workers;
  if (workers.empty() ||
      static_cast<int>(workers.size()) != spec.workers - outcome.lost) {
    return Contradiction(
        workers.size(), " workers reported, the job has ", spec.workers,
        outcome.lost > 0 ? absl::StrCat(" and lost ", outcome.lost) : "");
  }
  const auto key = [&](const WorkerResult& worker) {
    return is_disturbed ? worker.process : worker.rank;
  };
  absl::c_sort(workers,
               [&](const auto& a, const auto& b) { return key(a) < key(b); });
  for (int rank = 0; rank < spec.workers && !is_disturbed; ++rank) {
    const WorkerResult& worker = workers[rank];
    // A worker without a step to do has not been told the number of workers.
    const bool is_whole =
        worker.workers == spec.workers || worker.steps.done == 0;
    if (worker.rank != rank || !is_whole) {
      return Contradiction("a worker reported as ", worker.rank, " of ",
                           worker.workers, ", expected ", rank, " of ",
                           spec.workers);
    }
    if (worker.steps.done != workers[0].steps.done) {
      return Contradiction("worker ", rank, " did ", worker.steps.done,
                           " steps, worker 0 did ", workers[0].steps.done);
    }
    NEREUS_TRY(CheckTraffic(spec, worker));
  }
  return absl::OkStatus();
}

// Returns the model that all workers trained.
absl::StatusOr<std::vector<LayerSpec>> AgreedLayers(
    const std::vector<WorkerResult>& workers) {
  std::vector<LayerSpec> first = LayersOf(workers[0]);
  for (const WorkerResult& worker : workers) {
    const absl::Status same = CompareModels(
        first, LayersOf(worker), absl::StrCat("worker ", worker.rank));
    if (!same.ok()) return Contradiction(same.message());
  }
  return first;
}

// Checks that the last route of each layer on each worker is that of the plan.
absl::Status CheckRoutes(const PlanReport& plan,
                         const std::vector<WorkerResult>& workers) {
  const auto shown = [](const Route& route) {
    return absl::StrCat(SchemeName(route.scheme), " as ",
                        WireTypeName(route.wire));
  };
  for (const WorkerResult& worker : workers) {
    for (size_t i = 0; i < worker.layers.size(); ++i) {
      const Route route = worker.layers[i].route();
      const Route& planned = plan.plan.routes[i];
      if (route == planned) continue;
      return Contradiction("layer ", plan.layers[i].name, " of worker ",
                           worker.rank, " went by ", shown(route),
                           ", the plan says ", shown(planned));
    }
  }
  return absl::OkStatus();
}

// Sets all figures that are sums, means or extremes over the workers.
void SumUp(LocalReport& report) {
  int64_t images = 0;
  const auto count = static_cast<double>(report.workers().size());
  PhaseSeconds& seconds = report.seconds;
  for (const WorkerResult& worker : report.workers()) {
    images += worker.images;
    seconds.total = std::max(seconds.total, worker.seconds.total);
    seconds.forward += worker.seconds.forward / count;
    seconds.backward += worker.seconds.backward / count;
    seconds.wait += worker.seconds.wait / count;
    seconds.turn += worker.seconds.turn / count;
    report.last_step = std::max(report.last_step, worker.steps.last);
    report.saved_round =
        std::max(report.saved_round, worker.saved_round.value_or(-1));
    report.replicas_equal &=
        worker.parameter_checksum == report.workers()[0].parameter_checksum;
    if (!report.test_accuracy) report.test_accuracy = worker.test_accuracy;
  }
  if (seconds.total > 0) {
    report.images_per_second = static_cast<double>(images) / seconds.total;
  }
}

// Returns a table with the cost of each layer: bytes of the worker that moved
// most for it, and the mean latency over the workers.
std::string FormatLayers(const LocalReport& report) {
  TextTable table("lllrrr");
  table.Row("layer", "scheme", "wire", "rounds", "bytes, most",
            "latency, mean");
  for (size_t i = 0; i < report.plan.layers.size(); ++i) {
    int64_t bytes = 0;
    double latency = 0;
    for (const WorkerResult& worker : report.workers()) {
      const LayerResult& layer = worker.layers[i];
      bytes = std::max(bytes, layer.bytes_sent + layer.bytes_received);
      latency += layer.latency_seconds_mean /
                 static_cast<double>(report.workers().size());
    }
    const LayerResult& layer = report.longest().layers[i];
    table.Row(layer.spec.name, layer.scheme, layer.wire, layer.rounds,
              Megabytes(bytes), absl::StrFormat("%.3f ms", latency * 1e3));
  }
  return absl::StrCat(
      "Cost of each layer for a worker: bytes sent plus received, latency from "
      "push to ready.\n\n",
      table.Text());
}

// Returns a text that says if all workers have the same parameters, with their
// checksums.
std::string FormatReplicas(const LocalReport& report) {
  if (report.replicas_equal) {
    return absl::StrCat("equal, checksum ",
                        report.workers()[0].parameter_checksum);
  }
  const Quorum quorum = report.options.spec.options.rounds.quorum;
  return absl::StrCat(
      quorum == Quorum::kAll
          ? "DIFFERENT: "
          : absl::StrCat("different, as they may be with --quorum=",
                         QuorumName(quorum), ": "),
      absl::StrJoin(report.workers(), ", ",
                    [](std::string* out, const WorkerResult& worker) {
                      absl::StrAppend(out, worker.name(), " has ",
                                      worker.parameter_checksum);
                    }));
}

// Returns the bytes of the busiest node, measured and predicted, or the reason
// why there is no such figure.
std::string FormatTraffic(const LocalReport& report) {
  const JobSpec& spec = report.options.spec;
  if (report.is_disturbed()) {
    return absl::StrCat("not measured: ", report.outcome.restarts,
                        " processes were started again, ", report.rejoins,
                        " workers joined again, ", report.outcome.lost,
                        " workers and ", report.outcome.lost_servers,
                        " servers were lost");
  }
  const int64_t measured = report.bytes.busiest_measured();
  std::string text = absl::StrCat(measured, " bytes measured");
  if (const std::string why = WhyNotPredicted(report.options); !why.empty()) {
    return absl::StrCat(text, "; ", why);
  }
  const int64_t predicted = report.bytes.busiest_predicted();
  absl::StrAppend(
      &text, ", ", predicted, " predicted",
      spec.options.checkpoint_every > 0 ? " without checkpoints" : "");
  if (predicted > 0) {
    const double ratio =
        static_cast<double>(measured) / static_cast<double>(predicted);
    absl::StrAppendFormat(&text, " (%+.2f%%)", 100 * (ratio - 1));
  }
  return text +
         (spec.options.backup ? "; shards' copies are not measured" : "");
}

// Returns a text with the number of steps of the job. Workers of a job that
// went back to a checkpoint did some steps again. With --restore, workers count
// only the steps since the start.
std::string FormatSteps(const LocalReport& report) {
  const WorkerSteps& steps = report.longest().steps;
  if (steps.done == 0) return "0 steps: all steps were done before";
  const int64_t distinct =
      report.options.restore.empty() ? report.last_step + 1 : steps.done;
  std::string text = absl::StrCat(distinct, " steps");
  if (steps.done > distinct) {
    absl::StrAppend(&text, " and ", steps.done - distinct, " of them again");
  }
  if (steps.skipped > 0) {
    absl::StrAppend(&text, ", of which ", steps.skipped,
                    " were skipped for a NaN");
  }
  return text;
}

// Returns the options by their names in JSON, numbers as numbers.
Json SettingsJson(const LocalOptions& options) {
  Json json = {{"shared_memory", options.shared_memory}};
  const auto set = [&](const std::string& flag, const std::string& text) {
    const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    json[JsonName(flag)] = value.is_number() ? value : Json(text);
  };
  for (const TrainingFlag& flag : TrainingFlags()) {
    set(flag.name, options.training.at(flag.name));
  }
  for (const JobOption& option : JobOptionTable()) {
    set(option.name, option.get(options.spec));
  }
  return json;
}

Json JsonOrNull(bool is_known, const Json& value) {
  return is_known ? value : Json();
}

}  // namespace

std::string JsonName(const std::string& flag) {
  return absl::StrReplaceAll(flag, {{"-", "_"}});
}

const WorkerResult& LocalReport::longest() const {
  return *absl::c_max_element(workers(), [](const auto& a, const auto& b) {
    return a.steps.done < b.steps.done;
  });
}

std::vector<LayerSpec> LayersOf(const WorkerResult& worker) {
  std::vector<LayerSpec> layers;
  for (const LayerResult& layer : worker.layers) layers.push_back(layer.spec);
  return layers;
}

// Plans by bytes, because then the explanations have the number of elements by
// each scheme.
absl::StatusOr<Plan> PlanOfRun(absl::Span<const LayerSpec> layers,
                               PlanOptions options, const WorkerResult* last) {
  options.rules.cost = CostKind::kBytes;
  options.rules.choose_wire = false;
  Plan plan = NEREUS_TRY(MakePlan(layers, options));
  for (size_t i = 0; i < layers.size() && last != nullptr; ++i) {
    plan.routes[i] = last->layers[i].route();
    plan.explanations[i].reason = last->layers[i].reason;
  }
  return plan;
}

// Makes the plan again from the options. A plan by time depends on measurements
// of the job, so its routes are those that the first worker in the list
// reported.
absl::StatusOr<LocalReport> MakeLocalReport(const LocalOptions& options,
                                            LocalOutcome outcome) {
  const JobSpec& spec = options.spec;
  int rejoins = 0;
  for (const WorkerResult& worker : outcome.workers) {
    rejoins += worker.joins - 1;
  }
  NEREUS_TRY(SortAndCheck(spec,
                          outcome.restarts > 0 || outcome.lost > 0 ||
                              outcome.lost_servers > 0 || rejoins > 0,
                          outcome));
  const std::vector<WorkerResult>& workers = outcome.workers;
  std::vector<LayerSpec> layers = NEREUS_TRY(AgreedLayers(workers));
  PlanOptions plan_options;
  plan_options.cluster = PlannedCluster(options);
  plan_options.rules = RulesFor(spec.options, spec.rules);
  Plan made = NEREUS_TRY(PlanOfRun(layers, plan_options,
                                   PlansByTime(spec) ? &workers[0] : nullptr));
  PlanReport plan =
      NEREUS_TRY(MakePlanReport(options.training.at("model"), options.batch(),
                                layers, plan_options, std::move(made)));
  NEREUS_TRY(CheckRoutes(plan, workers));

  LocalReport report{options, std::move(plan), std::move(outcome), rejoins};
  SumUp(report);
  if (report.is_disturbed()) return report;
  report.bytes = CountNodeBytes(options, report.plan, report.workers());
  return report;
}

// Shares of the phases are relative to the mean time of a worker.
std::string FormatLocalText(const LocalReport& report) {
  double all = 0;
  for (const WorkerResult& worker : report.workers()) {
    all += worker.seconds.total / static_cast<double>(report.workers().size());
  }
  const auto phase = [&](double seconds) {
    return absl::StrFormat("%.2f s (%.0f%%)", seconds,
                           all > 0 ? 100 * seconds / all : 0);
  };
  return absl::StrFormat(
      "%s\n%s\n"
      "test accuracy  %s%s\n"
      "images/s       %.1f by %d workers, %.2f s, %s\n"
      "time           forward %s, backward %s, wait %s%s\n"
      "busiest node   %s\n"
      "replicas       %s\n",
      FormatPlanText(report.plan), FormatLayers(report),
      report.test_accuracy.has_value()
          ? absl::StrFormat("%.4f", *report.test_accuracy)
          : "not measured",
      report.options.training.at("data").empty()
          ? " on generated images; --data=DIR takes those of a folder"
          : "",
      report.images_per_second, report.workers().size(), report.seconds.total,
      FormatSteps(report), phase(report.seconds.forward),
      phase(report.seconds.backward), phase(report.seconds.wait),
      report.seconds.turn == 0
          ? ""
          : absl::StrCat(", wait for turns ", phase(report.seconds.turn)),
      FormatTraffic(report), FormatReplicas(report));
}

std::string FormatLocalJson(const LocalReport& report) {
  const NodeBytes& bytes = report.bytes;
  const bool is_predicted = !bytes.predicted.empty();
  Json workers = Json::array();
  for (const WorkerResult& worker : report.workers()) {
    workers.push_back(Json::parse(worker.json, /*cb=*/nullptr,
                                  /*allow_exceptions=*/false));
  }
  Json nodes = Json::array();
  for (size_t i = 0; i < bytes.measured.size(); ++i) {
    nodes.push_back({{"bytes_measured", bytes.measured[i]},
                     {"bytes_predicted", is_predicted ? Json(bytes.predicted[i])
                                                      : Json(nullptr)}});
  }
  return FormatJson({
      {"hosts", report.options.cluster().worker_hosts()},
      {"restarts", report.outcome.restarts},
      {"rejoins", report.rejoins},
      {"last_step", report.last_step},
      {"saved_round", JsonOrNull(report.saved_round >= 0, report.saved_round)},
      {"lost", report.outcome.lost},
      {"lost_servers", report.outcome.lost_servers},
      {"test_accuracy", JsonOrNull(report.test_accuracy.has_value(),
                                   report.test_accuracy.value_or(0))},
      {"replicas_equal", report.replicas_equal},
      {"images_per_second", report.images_per_second},
      {"seconds", report.seconds.total},
      {"skipped_steps", report.longest().steps.skipped},
      {"node_bytes_measured", bytes.busiest_measured()},
      {"node_bytes_predicted",
       JsonOrNull(is_predicted, bytes.busiest_predicted())},
      {"phases",
       {{"forward_seconds", report.seconds.forward},
        {"backward_seconds", report.seconds.backward},
        {"wait_seconds", report.seconds.wait},
        {"turn_seconds", report.seconds.turn}}},
      {"nodes", std::move(nodes)},
      {"workers", std::move(workers)},
      {"plan", Json::parse(FormatPlanJson(report.plan), /*cb=*/nullptr,
                           /*allow_exceptions=*/false)},
      {"settings", SettingsJson(report.options)},
  });
}

// The slowest worker counts, because the job ends with it.
std::string FormatProgress(
    absl::Span<const std::optional<WorkerProgress>> latest) {
  const WorkerProgress* slowest = nullptr;
  WorkerProgress sums;
  int reported = 0;
  for (const std::optional<WorkerProgress>& worker : latest) {
    if (!worker.has_value()) continue;
    if (slowest == nullptr || worker->step < slowest->step) slowest = &*worker;
    ++reported;
    sums.loss += worker->loss;
    sums.images_per_second += worker->images_per_second;
    sums.bytes += worker->bytes;
  }
  if (slowest == nullptr) return "starting";
  return absl::StrFormat(
      "epoch %d/%d  step %d/%d  loss %.4f  %.1f images/s  %s", slowest->epoch,
      slowest->epochs, slowest->step, slowest->steps, sums.loss / reported,
      sums.images_per_second, Megabytes(sums.bytes));
}

}  // namespace nereus
