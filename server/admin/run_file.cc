#include "server/admin/run_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_spec.h"
#include "nlohmann/json.hpp"
#include "server/admin/local_report.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 16;

// A run's settings, as far as they matter here.
struct Settings {
  std::string model;
  int64_t batch = 0;
  ClusterShape cluster;
  PlanRules rules;
  bool decoupled = false;
  double sparsity = 0;
};

absl::StatusOr<Json> FieldOf(const Json& object, const char* name,
                             bool (Json::*is)() const noexcept) {
  const auto field = object.find(name);
  if (field != object.end() && ((*field).*is)()) return *field;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is missing, or of another type"));
}

// The job's options, which are there by their names.
absl::StatusOr<JobSpec> ReadSpec(const Json& job) {
  JobSpec spec;
  for (const JobOption& option : JobOptionTable()) {
    const std::string name = JsonName(option);
    const auto found = job.find(name);
    if (found == job.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is missing"));
    }
    const absl::Status set = option.set(
        found->is_string() ? found->get<std::string>() : found->dump(), spec);
    if (!set.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\": ", set.message()));
    }
  }
  return spec;
}

absl::StatusOr<Settings> ReadSettings(const Json& run) {
  NEREUS_ASSIGN_OR_RETURN(const Json plan,
                          FieldOf(run, "plan", &Json::is_object));
  NEREUS_ASSIGN_OR_RETURN(const Json job,
                          FieldOf(run, "settings", &Json::is_object));
  Settings settings;
  NEREUS_ASSIGN_OR_RETURN(const Json model,
                          FieldOf(plan, "model", &Json::is_string));
  settings.model = model.get<std::string>();
  const auto integer = [&](const char* name) -> absl::StatusOr<int64_t> {
    NEREUS_ASSIGN_OR_RETURN(const Json value,
                            FieldOf(plan, name, &Json::is_number_integer));
    return value.get<int64_t>();
  };
  NEREUS_ASSIGN_OR_RETURN(settings.batch, integer("batch"));
  NEREUS_ASSIGN_OR_RETURN(settings.cluster.workers, integer("workers"));
  NEREUS_ASSIGN_OR_RETURN(settings.cluster.servers, integer("servers"));
  NEREUS_RETURN_IF_ERROR(settings.cluster.Validate());
  NEREUS_ASSIGN_OR_RETURN(const JobSpec spec, ReadSpec(job));
  settings.rules = RulesFor(spec.options, spec.rules);
  settings.decoupled = spec.options.overlap == Overlap::kDecoupled;
  settings.sparsity = spec.options.sparsity;
  return settings;
}

absl::StatusOr<std::vector<WorkerResult>> ReadWorkers(const Json& run) {
  NEREUS_ASSIGN_OR_RETURN(const Json list,
                          FieldOf(run, "workers", &Json::is_array));
  std::vector<WorkerResult> workers;
  for (const Json& item : list) {
    NEREUS_ASSIGN_OR_RETURN(
        WorkerEvent event,
        ParseWorkerEvent(
            item.dump(-1, ' ', false, Json::error_handler_t::replace)));
    if (auto* result = std::get_if<WorkerResult>(&event)) {
      workers.push_back(std::move(*result));
    }
  }
  for (const WorkerResult& worker : workers) {
    if (worker.layers.size() != workers[0].layers.size()) {
      return absl::InvalidArgumentError("workers have different models");
    }
    if (worker.measured.has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "worker ", worker.rank,
        " has measured nothing: the run was too short, or not by --cost=time"));
  }
  if (!workers.empty()) return workers;
  return absl::InvalidArgumentError("no worker says how it has ended");
}

TimeModel SlowestOf(const std::vector<WorkerResult>& workers) {
  TimeModel model;
  model.link = workers[0].measured->link;
  model.times.resize(workers[0].layers.size());
  for (const WorkerResult& worker : workers) {
    const LinkSpeed& link = worker.measured->link;
    model.link.rate = std::min(model.link.rate, link.rate);
    model.link.latency = std::max(model.link.latency, link.latency);
    model.link.message_time =
        std::max(model.link.message_time, link.message_time);
    for (size_t i = 0; i < model.times.size(); ++i) {
      const LayerTime& time = worker.layers[i].time;
      model.times[i].forward = std::max(model.times[i].forward, time.forward);
      model.times[i].backward =
          std::max(model.times[i].backward, time.backward);
    }
  }
  return model;
}

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

absl::StatusOr<ExplainedPlan> ExplainRun(absl::string_view json) {
  // What nests deeper than any run of ours is left out: the library recurses.
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  const Json run = Json::parse(json.begin(), json.end(), shallow,
                               /*allow_exceptions=*/false);
  if (!run.is_object()) {
    return absl::InvalidArgumentError("not a JSON object");
  }
  NEREUS_ASSIGN_OR_RETURN(const Settings settings, ReadSettings(run));
  NEREUS_ASSIGN_OR_RETURN(const std::vector<WorkerResult> workers,
                          ReadWorkers(run));
  std::vector<LayerSpec> layers;
  for (const WorkerLayer& layer : workers[0].layers) {
    layers.push_back(layer.spec);
  }
  PlanOptions options;
  options.cluster = settings.cluster;
  options.rules = settings.rules;
  options.time = SlowestOf(workers);
  options.time->decoupled = settings.decoupled;
  options.time->share = 1 - settings.sparsity;
  NEREUS_RETURN_IF_ERROR(options.time->Validate(layers));
  PlanOptions by_bytes = options;
  by_bytes.rules.cost = CostKind::kBytes;
  by_bytes.rules.choose_wire = false;
  NEREUS_ASSIGN_OR_RETURN(Plan plan, MakePlan(layers, by_bytes));
  for (size_t i = 0; i < layers.size(); ++i) {
    plan.routes[i] = {workers[0].layers[i].scheme, workers[0].layers[i].wire};
    plan.explanations[i].reason = workers[0].layers[i].reason;
  }
  plan.fusion_bytes = FusionFor(layers, options, plan.routes);
  NEREUS_ASSIGN_OR_RETURN(
      PlanReport report,
      MakePlanReport(settings.model, settings.batch, std::move(layers), options,
                     std::move(plan)));
  PlanForecast forecast = MakeForecast(report, *options.time);
  SetMeasured(workers, forecast);
  return ExplainedPlan{std::move(report), std::move(forecast)};
}

std::string FormatExplainedJson(const ExplainedPlan& plan,
                                const Verdict& verdict) {
  Json json = Json::parse(FormatPlanJson(plan.report), /*cb=*/nullptr,
                          /*allow_exceptions=*/false);
  json["time"] = ForecastJson(plan.report, plan.forecast);
  json["verdict"] = VerdictJson(verdict);
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

}  // namespace nereus
