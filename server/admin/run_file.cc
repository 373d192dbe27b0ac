#include "server/admin/run_file.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/json_fields.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/plan/model_table.h"
#include "common/protocol/job_spec.h"
#include "nlohmann/json.hpp"
#include "server/admin/local_report.h"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Reads the options of the job, which are fields of "settings".
absl::StatusOr<JobSpec> ReadSpec(const Json& settings) {
  JobSpec spec;
  for (const JobOption& option : JobOptionTable()) {
    const std::string name = JsonName(option.name);
    const auto found = settings.find(name);
    absl::Status status = NotFoundError("it is missing");
    if (found != settings.end()) {
      status = option.set(
          found->is_string() ? found->get<std::string>() : found->dump(), spec);
    }
    if (status.ok()) continue;
    return InvalidArgumentError("settings: ", name, ": ", status.message());
  }
  return spec;
}

// Reads the results that the workers wrote at their end. Workers that were lost
// have no result.
absl::StatusOr<std::vector<WorkerResult>> ReadWorkers(const Json& list) {
  std::vector<WorkerResult> workers;
  for (const Json& item : list) {
    WorkerEvent event = NEREUS_TRY(ParseWorkerEvent(FormatJson(item)));
    if (auto* result = std::get_if<WorkerResult>(&event)) {
      workers.push_back(std::move(*result));
    }
  }
  for (const WorkerResult& worker : workers) {
    if (worker.layers.size() != workers[0].layers.size()) {
      return InvalidArgumentError("workers have different models");
    }
    if (worker.measured.has_value()) continue;
    return InvalidArgumentError(
        "worker ", worker.rank,
        " has measured nothing: the run was too short, or not by --cost=time");
  }
  if (!workers.empty() &&
      absl::c_none_of(workers, [](const WorkerResult& worker) {
        return worker.measured->link.has_value();
      })) {
    return InvalidArgumentError("no worker has measured the link of its host");
  }
  if (!workers.empty()) return workers;
  return InvalidArgumentError(
      "no worker has reported its end: did the job fail?");
}

// Returns the slowest value of each figure over all workers, because a step
// waits for the slowest worker.
TimeModel SlowestOf(const std::vector<WorkerResult>& workers) {
  TimeModel model;
  model.waits_in_forward = true;
  model.link.rate = std::numeric_limits<double>::infinity();
  model.times.resize(workers[0].layers.size());
  for (const WorkerResult& worker : workers) {
    const WorkerMeasurements& measured = *worker.measured;
    model.waits_in_forward =
        model.waits_in_forward && measured.waits_in_forward;
    if (measured.link.has_value()) {
      model.link = SlowerOf(model.link, *measured.link);
    }
    if (measured.memory_rate.has_value()) {
      model.memory_rate = std::min(model.memory_rate, *measured.memory_rate);
    }
    for (size_t i = 0; i < model.times.size(); ++i) {
      const LayerTime& time = worker.layers[i].time;
      model.times[i].forward = std::max(model.times[i].forward, time.forward);
      model.times[i].backward =
          std::max(model.times[i].backward, time.backward);
    }
  }
  return model;
}

// Adds the measured times to a forecast: means over the workers.
void SetMeasured(const std::vector<WorkerResult>& workers,
                 PlanForecast& forecast) {
  const auto mean = [&](auto of) {
    double sum = 0;
    for (const WorkerResult& worker : workers) sum += of(worker);
    return sum / static_cast<double>(workers.size());
  };
  forecast.iteration_seconds_measured = mean([](const WorkerResult& worker) {
    return absl::ToDoubleSeconds(worker.measured->step_time);
  });
  for (size_t i = 0; i < forecast.layers.size(); ++i) {
    forecast.layers[i].sync_seconds_measured =
        mean([&](const WorkerResult& worker) {
          return worker.layers[i].latency_seconds_mean;
        });
  }
}

}  // namespace

// The plan takes its routes from a worker, because a plan by time may have
// changed while the job ran. All workers had the same plan at the end.
absl::StatusOr<ExplainedPlan> ExplainRun(absl::string_view json) {
  const Json run = ParseJson(json);
  JsonFields fields(run, "run");
  std::string model;
  int64_t batch = 0;
  PlanOptions options;
  // A plan for hosts of one worker each does not have the field.
  const bool has_hosts =
      run.contains("plan") && run.at("plan").contains("hosts");
  fields.Object("plan", options.cluster,
                [&](JsonFields& plan, ClusterShape& cluster) {
                  plan.Text("model", model);
                  plan.Integer("batch", batch, 1, kBatchMax);
                  plan.Integer("workers", cluster.workers, 1, kWorkersMax);
                  plan.Integer("servers", cluster.servers, 1, kServersMax);
                  if (!has_hosts) return;
                  plan.Integer("hosts", cluster.hosts, 1, kWorkersMax);
                });
  const Json& settings = fields.ReadObject("settings");
  const Json& list = fields.ReadList("workers");
  NEREUS_TRY(fields.status());
  const JobSpec spec = NEREUS_TRY(ReadSpec(settings));
  const std::vector<WorkerResult> workers = NEREUS_TRY(ReadWorkers(list));

  std::vector<LayerSpec> layers = LayersOf(workers[0]);
  options.rules = RulesFor(spec.options, spec.rules);
  options.time = SlowestOf(workers);
  options.time->share = 1 - spec.options.sparsity.share;
  options.time->sequential = spec.options.overlap == Overlap::kNone;
  NEREUS_TRY(options.time->Validate(layers));
  Plan plan = NEREUS_TRY(PlanOfRun(layers, options, &workers[0]));
  plan.fusion_bytes = FusionFor(layers, options, plan.routes);
  PlanReport report = NEREUS_TRY(MakePlanReport(model, batch, std::move(layers),
                                                options, std::move(plan)));
  PlanForecast forecast = MakeForecast(report, *options.time);
  SetMeasured(workers, forecast);
  return ExplainedPlan{std::move(report), std::move(forecast)};
}

std::string FormatExplainedJson(const ExplainedPlan& plan,
                                const Diagnosis& diagnosis) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(
      FormatPlanJson(plan.report), /*cb=*/nullptr, /*allow_exceptions=*/false);
  json["time"] = ForecastJson(plan.report, plan.forecast);
  json["verdict"] = DiagnosisJson(diagnosis);
  return FormatJson(json);
}

}  // namespace nereus
