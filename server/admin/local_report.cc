#include "server/admin/local_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/plan/traffic.h"
#include "common/plan/wide_integer.h"
#include "common/protocol/frame.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Puts the results into the order of their ranks, or of their names if the job
// was disturbed, and checks that together they are one job.
absl::Status SortAndCheck(const LocalOptions& options, bool is_disturbed,
                          int lost, std::vector<WorkerResult>& workers) {
  if (workers.empty() ||
      static_cast<int>(workers.size()) != options.spec.workers - lost) {
    return absl::InternalError(absl::StrCat(
        workers.size(), " workers reported, the job has ", options.spec.workers,
        lost > 0 ? absl::StrCat(" and lost ", lost) : ""));
  }
  if (is_disturbed) {
    std::sort(workers.begin(), workers.end(), [](const auto& a, const auto& b) {
      return std::pair(a.name.size(), a.name) <
             std::pair(b.name.size(), b.name);
    });
    return absl::OkStatus();
  }
  std::sort(workers.begin(), workers.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (int rank = 0; rank < options.spec.workers; ++rank) {
    const WorkerResult& worker = workers[rank];
    // None, if there was no step to do.
    const bool is_whole =
        worker.workers == options.spec.workers || worker.steps == 0;
    if (worker.rank != rank || !is_whole) {
      return absl::InternalError(absl::StrCat(
          "a worker reported as ", worker.rank, " of ", worker.workers,
          ", expected ", rank, " of ", options.spec.workers));
    }
    if (worker.steps != workers[0].steps) {
      return absl::InternalError(
          absl::StrCat("worker ", rank, " did ", worker.steps,
                       " steps, worker 0 did ", workers[0].steps));
    }
    for (const WorkerTraffic& traffic : worker.traffic) {
      const int ranks =
          traffic.is_shard ? options.spec.shards : options.spec.workers;
      if (traffic.rank >= ranks) {
        return absl::InternalError(
            absl::StrCat("worker ", rank, " reported traffic with ",
                         traffic.is_shard ? "shard " : "worker ", traffic.rank,
                         ", the job has ", ranks));
      }
    }
  }
  return absl::OkStatus();
}

// The model that the workers trained, if they agree on it.
absl::StatusOr<std::vector<LayerSpec>> AgreedLayers(
    const std::vector<WorkerResult>& workers) {
  std::vector<LayerSpec> first;
  for (const WorkerResult& worker : workers) {
    std::vector<LayerSpec> layers;
    for (const WorkerLayer& layer : worker.layers) {
      layers.push_back(layer.spec);
    }
    if (first.empty()) {
      first = std::move(layers);
      continue;
    }
    const absl::Status same =
        CompareModels(first, layers, absl::StrCat("worker ", worker.rank));
    if (!same.ok()) return absl::InternalError(same.message());
  }
  return first;
}

absl::Status CheckRoutes(const PlanReport& plan,
                         const std::vector<WorkerResult>& workers) {
  for (const WorkerResult& worker : workers) {
    for (size_t i = 0; i < worker.layers.size(); ++i) {
      const Route route = {worker.layers[i].scheme, worker.layers[i].wire};
      const Route& planned = plan.plan.routes[i];
      if (route == planned) continue;
      return absl::InternalError(absl::StrCat(
          "layer ", plan.layers[i].name, " of worker ", worker.rank,
          " went by ", SchemeName(route.scheme), " as ",
          WireTypeName(route.wire), ", the plan says ",
          SchemeName(planned.scheme), " as ", WireTypeName(planned.wire)));
    }
  }
  return absl::OkStatus();
}

// Whether the job's plan follows what its workers measure.
bool PlansByTime(const LocalOptions& options) {
  const PlanRules rules = RulesFor(options.spec.options, options.spec.rules);
  return rules.cost == CostKind::kTime && rules.choose() &&
         !options.spec.options.deterministic;
}

// Empty: the bytes are predicted.
std::string WhyNotPredicted(const LocalOptions& options) {
  if (options.spec.options.sparsity > 0) {
    return "where the blocks lie that travel is not known beforehand";
  }
  if (PlansByTime(options)) {
    return "plans by time may change while a job runs, so none are predicted";
  }
  return "";
}

absl::StatusOr<PlanReport> PlanOf(const LocalOptions& options,
                                  const std::vector<LayerSpec>& layers,
                                  const std::vector<WorkerResult>& workers) {
  PlanOptions plan_options;
  plan_options.cluster = {options.spec.workers, options.spec.shards};
  plan_options.rules = RulesFor(options.spec.options, options.spec.rules);
  // The first plan of any job.
  plan_options.rules.cost = CostKind::kBytes;
  plan_options.rules.choose_wire = false;
  NEREUS_ASSIGN_OR_RETURN(Plan plan, MakePlan(layers, plan_options));
  plan_options.rules.cost = options.spec.rules.cost;
  plan_options.rules.choose_wire = options.spec.rules.choose_wire;
  if (PlansByTime(options)) {
    for (size_t i = 0; i < layers.size(); ++i) {
      plan.routes[i] = {workers[0].layers[i].scheme, workers[0].layers[i].wire};
      plan.explanations[i].reason = workers[0].layers[i].reason;
    }
  }
  return MakePlanReport(options.training.model, options.training.batch, layers,
                        plan_options, std::move(plan));
}

std::vector<int64_t> MeasuredBytes(const LocalReport& report) {
  std::vector<WideInteger> nodes(
      std::max(report.options.spec.workers, report.options.spec.shards));
  for (const WorkerResult& worker : report.workers) {
    for (const WorkerTraffic& traffic : worker.traffic) {
      if (traffic.is_shard && traffic.rank == worker.rank) continue;
      const WideInteger bytes =
          WideInteger{traffic.bytes_sent} + traffic.bytes_received;
      nodes[worker.rank] += bytes;
      // The other worker reports its end itself; a shard reports nothing.
      if (traffic.is_shard) nodes[traffic.rank] += bytes;
    }
  }
  std::vector<int64_t> bytes;
  bytes.reserve(nodes.size());
  for (const WideInteger node : nodes) bytes.push_back(SaturateToInt64(node));
  return bytes;
}

std::vector<int64_t> PredictedBytes(const LocalReport& report) {
  const PlanReport& plan = report.plan;
  const int64_t workers = report.options.spec.workers;
  const std::vector<int64_t> initial = PredictInitialBytes(
      plan.plan.routes, plan.placement, workers, kFrameHeaderBytes,
      kFrameElementsMax,
      report.options.spec.options.optimizer_place == OptimizerPlace::kServer);
  const std::vector<int64_t> step = PredictNodeBytes(
      plan.layers, plan.plan.routes, plan.placement, workers, kFrameHeaderBytes,
      kFrameElementsMax,
      report.options.spec.options.overlap == Overlap::kDecoupled);
  std::vector<int64_t> bytes;
  bytes.reserve(initial.size());
  for (size_t i = 0; i < initial.size(); ++i) {
    bytes.push_back(SaturateToInt64(initial[i] + WideInteger{step[i]} *
                                                     report.workers[0].steps));
  }
  return bytes;
}

void SetMeans(LocalReport& report) {
  int64_t images = 0;
  const auto count = static_cast<double>(report.workers.size());
  report.replicas_equal = true;
  for (const WorkerResult& worker : report.workers) {
    images += worker.images;
    report.seconds = std::max(report.seconds, worker.seconds);
    report.forward_seconds += worker.forward_seconds / count;
    report.backward_seconds += worker.backward_seconds / count;
    report.wait_seconds += worker.wait_seconds / count;
    report.replicas_equal &=
        worker.parameter_checksum == report.workers[0].parameter_checksum;
  }
  if (report.seconds > 0) {
    report.images_per_second = static_cast<double>(images) / report.seconds;
  }
}

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.3f MB", static_cast<double>(bytes) / 1e6);
}

// What each layer cost: its bytes at the worker that moved most for it, and its
// latency as the mean over the workers.
std::string FormatLayers(const LocalReport& report) {
  size_t width = 5;
  for (const LayerSpec& layer : report.plan.layers) {
    width = std::max(width, layer.name.size());
  }
  const auto column = static_cast<int>(width);
  std::string text = absl::StrFormat(
      "What each layer cost a worker, sent plus received and from push to "
      "ready:\n\n%-*s  %-6s  %-4s  %8s  %16s  %16s\n",
      column, "layer", "scheme", "wire", "rounds", "bytes, most",
      "latency, mean");
  for (size_t i = 0; i < report.plan.layers.size(); ++i) {
    int64_t bytes = 0;
    double latency = 0;
    for (const WorkerResult& worker : report.workers) {
      const WorkerLayer& layer = worker.layers[i];
      bytes = std::max(bytes, layer.bytes_sent + layer.bytes_received);
      latency += layer.latency_seconds_mean;
    }
    latency /= static_cast<double>(report.workers.size());
    const WorkerLayer& layer = report.longest().layers[i];
    absl::StrAppendFormat(&text, "%-*s  %-6s  %-4s  %8d  %16s  %13.3f ms\n",
                          column, layer.spec.name,
                          std::string(SchemeName(layer.scheme)),
                          std::string(WireTypeName(layer.wire)), layer.rounds,
                          Megabytes(bytes), latency * 1e3);
  }
  return text;
}

std::string FormatPhase(const char* name, double seconds, double all) {
  const double percent = all > 0 ? 100 * seconds / all : 0;
  return absl::StrFormat("%s %.2f s (%.0f%%)", name, seconds, percent);
}

std::string FormatReplicas(const LocalReport& report) {
  if (report.replicas_equal) {
    return absl::StrCat("equal, checksum ",
                        report.workers[0].parameter_checksum);
  }
  const Quorum quorum = report.options.spec.options.quorum;
  std::string text =
      quorum == Quorum::kAll
          ? "DIFFERENT:"
          : absl::StrCat("different, as they may be with quorum ",
                         QuorumName(quorum), ":");
  for (const WorkerResult& worker : report.workers) {
    absl::StrAppend(&text, &worker == report.workers.data() ? " " : ", ",
                    worker.name, " has ", worker.parameter_checksum);
  }
  return text;
}

std::string FormatTraffic(const LocalReport& report) {
  if (report.is_disturbed()) {
    return absl::StrCat("not measured: ", report.restarts,
                        " processes were started again, ", report.rejoins,
                        " workers joined again, ", report.lost, " were lost");
  }
  const int64_t measured = report.busiest_bytes_measured();
  if (const std::string why = WhyNotPredicted(report.options); !why.empty()) {
    return absl::StrCat(measured, " bytes measured; ", why);
  }
  const int64_t predicted = report.busiest_bytes_predicted();
  std::string text =
      absl::StrCat(measured, " bytes measured, ", predicted, " predicted");
  if (report.options.spec.options.checkpoint_every > 0) {
    absl::StrAppend(&text, " without checkpoints");
  }
  if (predicted > 0) {
    absl::StrAppendFormat(
        &text, " (%+.2f%%)",
        100 * (static_cast<double>(measured) / static_cast<double>(predicted) -
               1));
  }
  if (report.options.spec.options.backup) {
    absl::StrAppend(&text, "; shards' copies are not measured");
  }
  return text;
}

// A number as that, everything else as text.
OrderedJson ValueJson(const std::string& text) {
  OrderedJson json =
      OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_number() ? json : OrderedJson(text);
}

OrderedJson SettingsJson(const LocalOptions& options) {
  const TrainingOptions& training = options.training;
  OrderedJson json = {
      {"model", training.model},
      {"data", training.data},
      {"holdout", training.holdout},
      {"batch", training.batch},
      {"epochs", training.epochs},
      {"seed", training.seed},
      {"limit", training.limit},
      {"threads", training.threads},
      {"shared_memory", options.shared_memory},
  };
  for (const JobOption& option : JobOptionTable()) {
    json[JsonName(option)] = ValueJson(option.get(options.spec));
  }
  return json;
}

// The job's, where all are known; which its workers did again, having gone
// back.
std::string FormatSteps(const LocalReport& report) {
  const int64_t done = report.longest().steps;
  const int64_t steps =
      report.options.restore.empty() ? report.last_step + 1 : done;
  if (done == 0) return "0 steps: all had been done before";
  return absl::StrCat(
      steps, " steps",
      done > steps ? absl::StrCat(" and ", done - steps, " of them again")
                   : "");
}

}  // namespace

std::string JsonName(const JobOption& option) {
  return absl::StrReplaceAll(option.name, {{"-", "_"}});
}

int64_t LocalReport::busiest_bytes_measured() const {
  if (node_bytes_measured.empty()) return 0;
  return *std::max_element(node_bytes_measured.begin(),
                           node_bytes_measured.end());
}

int64_t LocalReport::busiest_bytes_predicted() const {
  if (node_bytes_predicted.empty()) return 0;
  return *std::max_element(node_bytes_predicted.begin(),
                           node_bytes_predicted.end());
}

const WorkerResult& LocalReport::longest() const {
  return *std::max_element(
      workers.begin(), workers.end(),
      [](const auto& a, const auto& b) { return a.steps < b.steps; });
}

absl::StatusOr<LocalReport> MakeLocalReport(const LocalOptions& options,
                                            std::vector<WorkerResult> workers,
                                            const LocalEvents& events) {
  int rejoins = 0;
  for (const WorkerResult& worker : workers) rejoins += worker.joins - 1;
  NEREUS_RETURN_IF_ERROR(SortAndCheck(
      options, events.restarts > 0 || events.lost > 0 || rejoins > 0,
      events.lost, workers));
  NEREUS_ASSIGN_OR_RETURN(std::vector<LayerSpec> layers, AgreedLayers(workers));
  NEREUS_ASSIGN_OR_RETURN(PlanReport plan, PlanOf(options, layers, workers));
  NEREUS_RETURN_IF_ERROR(CheckRoutes(plan, workers));

  LocalReport report{options, std::move(plan), std::move(workers)};
  for (const WorkerResult& worker : report.workers) {
    if (worker.test_accuracy.has_value() && !report.test_accuracy.has_value()) {
      report.test_accuracy = worker.test_accuracy;
    }
  }
  report.restarts = events.restarts;
  report.lost = events.lost;
  report.rejoins = rejoins;
  for (const WorkerResult& worker : report.workers) {
    report.last_step = std::max(report.last_step, worker.last_step);
    report.saved_round = std::max(report.saved_round, worker.saved_round);
  }
  SetMeans(report);
  if (report.is_disturbed()) return report;
  report.node_bytes_measured = MeasuredBytes(report);
  if (WhyNotPredicted(options).empty()) {
    report.node_bytes_predicted = PredictedBytes(report);
  }
  return report;
}

std::string FormatLocalText(const LocalReport& report) {
  const WorkerResult& longest = report.longest();
  double seconds = 0;
  for (const WorkerResult& worker : report.workers) {
    seconds += worker.seconds / static_cast<double>(report.workers.size());
  }
  return absl::StrCat(
      FormatPlanText(report.plan), "\n", FormatLayers(report), "\n",
      "test accuracy  ",
      report.test_accuracy.has_value()
          ? absl::StrFormat("%.4f", *report.test_accuracy)
          : "not measured",
      "\nimages/s       ",
      absl::StrFormat("%.1f by %d workers, %.2f s, %s",
                      report.images_per_second, report.options.spec.workers,
                      report.seconds, FormatSteps(report)),
      longest.skipped_steps == 0
          ? ""
          : absl::StrCat(", of which ", longest.skipped_steps,
                         " were skipped for a NaN"),
      "\ntime           ",
      FormatPhase("forward", report.forward_seconds, seconds), ", ",
      FormatPhase("backward", report.backward_seconds, seconds), ", ",
      FormatPhase("wait", report.wait_seconds, seconds), "\nbusiest node   ",
      FormatTraffic(report), "\nreplicas       ", FormatReplicas(report), "\n");
}

std::string FormatLocalJson(const LocalReport& report) {
  OrderedJson accuracy;  // null
  if (report.test_accuracy.has_value()) accuracy = *report.test_accuracy;
  OrderedJson workers = OrderedJson::array();
  for (const WorkerResult& worker : report.workers) {
    workers.push_back(OrderedJson::parse(worker.json, /*cb=*/nullptr,
                                         /*allow_exceptions=*/false));
  }
  OrderedJson nodes = OrderedJson::array();
  for (size_t i = 0; i < report.node_bytes_measured.size(); ++i) {
    OrderedJson predicted;  // null
    if (!report.node_bytes_predicted.empty()) {
      predicted = report.node_bytes_predicted[i];
    }
    nodes.push_back({{"bytes_measured", report.node_bytes_measured[i]},
                     {"bytes_predicted", std::move(predicted)}});
  }
  OrderedJson predicted;  // null
  if (!report.node_bytes_predicted.empty()) {
    predicted = report.busiest_bytes_predicted();
  }
  const OrderedJson json = {
      {"restarts", report.restarts},
      {"rejoins", report.rejoins},
      {"last_step", report.last_step},
      {"saved_round", report.saved_round < 0
                          ? nlohmann::ordered_json()
                          : nlohmann::ordered_json(report.saved_round)},
      {"lost", report.lost},
      {"test_accuracy", accuracy},
      {"replicas_equal", report.replicas_equal},
      {"images_per_second", report.images_per_second},
      {"seconds", report.seconds},
      {"skipped_steps", report.longest().skipped_steps},
      {"node_bytes_measured", report.busiest_bytes_measured()},
      {"node_bytes_predicted", std::move(predicted)},
      {"phases",
       {{"forward_seconds", report.forward_seconds},
        {"backward_seconds", report.backward_seconds},
        {"wait_seconds", report.wait_seconds}}},
      {"nodes", std::move(nodes)},
      {"workers", std::move(workers)},
      {"plan", OrderedJson::parse(FormatPlanJson(report.plan), /*cb=*/nullptr,
                                  /*allow_exceptions=*/false)},
      {"settings", SettingsJson(report.options)},
  };
  // The replacing handler: dump would throw at a path that is not UTF-8.
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   OrderedJson::error_handler_t::replace);
}

std::string FormatProgress(
    absl::Span<const std::optional<WorkerProgress>> latest) {
  const WorkerProgress* slowest = nullptr;
  int heard = 0;
  double loss = 0;
  double images_per_second = 0;
  int64_t bytes = 0;
  for (const std::optional<WorkerProgress>& worker : latest) {
    if (!worker.has_value()) continue;
    if (slowest == nullptr || worker->step < slowest->step) slowest = &*worker;
    ++heard;
    loss += worker->loss;
    images_per_second += worker->images_per_second;
    bytes += worker->bytes;
  }
  if (slowest == nullptr) return "starting";
  return absl::StrFormat(
      "epoch %d/%d  step %d/%d  loss %.4f  %.1f images/s  %s", slowest->epoch,
      slowest->epochs, slowest->step, slowest->steps, loss / heard,
      images_per_second, Megabytes(bytes));
}

}  // namespace nereus
