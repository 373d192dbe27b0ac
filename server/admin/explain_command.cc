// Command `explain`: says what limits a job, by a trace of some of its steps.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/base/text_table.h"
#include "common/flags/flags.h"
#include "common/plan/plan_forecast.h"
#include "common/plan/plan_report.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"
#include "server/admin/diagnosis.h"
#include "server/admin/run_file.h"
#include "server/admin/trace_archive.h"
#include "server/admin/trace_summary.h"

namespace nereus {
namespace {

// Largest number of layers that the text lists.
constexpr size_t kLayersShown = 8;
// Smallest share of a step that a worker must wait for such a layer.
constexpr double kShareMin = 0.001;

// Returns the shape of the cluster that the trace shows.
ClusterShape ShapeOf(const Job& job) {
  ClusterShape cluster;
  cluster.workers = job.worker_count();
  cluster.servers = job.shards();
  const int hosts = job.partial() ? 0 : job.LineupOf(kStepMax).hosts();
  cluster.hosts = hosts == job.worker_count() ? 0 : hosts;
  return cluster;
}

// Returns the question for the planner: the job of the trace, with the times of
// the trace.
WhatIf QuestionOf(const JobTrace& trace, const TraceSummary& summary) {
  const Job& job = *trace.job;
  WhatIf what_if;
  what_if.layers.assign(job.model().begin(), job.model().end());
  what_if.times = summary.times;
  what_if.plan.cluster = ShapeOf(job);
  PlanRules rules;
  rules.cost = CostKind::kTime;
  rules.wire = job.routes.front().wire;
  rules.fusion_bytes = job.options.fusion_bytes;
  what_if.plan.rules = RulesFor(job.options, std::move(rules));
  what_if.job = job.options;
  const LinkSpeed& link = *trace.measured->link;
  what_if.node_rate = link.rate;
  what_if.latency = link.latency;
  what_if.message_time = link.message_time;
  what_if.memory_rate =
      trace.measured->memory_rate.value_or(what_if.memory_rate);
  return what_if;
}

// Prediction of the planner about the job that was traced.
struct Forecast {
  ExplainedPlan plan;
  std::vector<Diagnosis::Advice> advice;
};

// Returns the forecast with the times of the trace; nothing if the job has not
// measured its links.
absl::StatusOr<std::optional<Forecast>> MakeJobForecast(
    const JobTrace& trace, const TraceSummary& summary) {
  if (!trace.measured.has_value() || !trace.measured->link.has_value()) {
    return std::nullopt;
  }
  const WhatIf what_if = QuestionOf(trace, summary);
  const PlanOptions options = NEREUS_TRY(PlanOptionsOf(what_if));
  NEREUS_TRY(options.time->Validate(what_if.layers));
  Plan plan;
  plan.routes.assign(trace.job->routes.begin(),
                     trace.job->routes.begin() + std::ssize(what_if.layers));
  plan.explanations.resize(plan.routes.size());
  plan.fusion_bytes = trace.job->options.fusion_bytes;
  PlanReport report = NEREUS_TRY(MakePlanReport(
      trace.job_name, /*batch=*/0, what_if.layers, options, std::move(plan)));
  PlanForecast forecast = MakeForecast(report, *options.time);
  forecast.iteration_seconds_measured = absl::ToDoubleSeconds(summary.step);
  return Forecast{{std::move(report), std::move(forecast)},
                  FindAdvice(what_if)};
}

Diagnosis DiagnosisOf(const JobTrace& trace, const TraceSummary& summary) {
  Diagnosis diagnosis;
  const ClusterShape cluster = ShapeOf(*trace.job);
  diagnosis.workers = cluster.workers;
  diagnosis.hosts = cluster.hosts;
  diagnosis.iteration_seconds = absl::ToDoubleSeconds(summary.step);
  diagnosis.compute_seconds = absl::ToDoubleSeconds(summary.computing);
  diagnosis.delay_seconds = absl::ToDoubleSeconds(summary.late);
  diagnosis.single_node_seconds = diagnosis.compute_seconds;
  return diagnosis;
}

std::string Milliseconds(absl::Duration time) {
  return absl::StrFormat("%.3f ms", absl::ToDoubleMilliseconds(time));
}

// Returns the line about the wait for a device that other jobs use; "": no
// worker waits.
std::string TurnText(const TraceSummary& summary) {
  const auto longest = absl::c_max_element(
      summary.workers,
      [](const auto& a, const auto& b) { return a.step.turn < b.step.turn; });
  if (longest->step.turn < kShareMin * summary.step) return "";
  return absl::StrCat("Other jobs share the devices: ", longest->name,
                      " waits longest for its turn, ",
                      Milliseconds(longest->step.turn), " in a step.\n");
}

// Returns the lines about workers, and about layers that are waited for.
std::string SummaryText(const JobTrace& trace, const TraceSummary& summary) {
  std::string text;
  const TraceSummary::Worker& slowest = summary.workers[summary.slowest];
  absl::StrAppend(
      &text, "Steps ", trace.first_step, " to ", trace.last_step, " of ",
      summary.workers.size(), " workers. The slowest, ", slowest.name,
      ", computes ", Milliseconds(slowest.step.computing()), " in a step; the ",
      "median is ", Milliseconds(summary.computing), ".\n", TurnText(summary));
  // Layers that cost nearly nothing are left out.
  const auto end = absl::c_find_if(summary.layers, [&](const auto& layer) {
    return layer.waited < kShareMin * summary.step;
  });
  const auto count = static_cast<size_t>(end - summary.layers.begin());
  if (count == 0) return text + "No worker waits for a layer.\n";
  absl::StrAppend(&text, "A worker waits in a step for:\n");
  TextTable table("llrl");
  for (size_t i = 0; i < std::min(kLayersShown, count); ++i) {
    const auto& [layer, waited] = summary.layers[i];
    const Route& route = trace.job->routes[layer];
    table.Row("", trace.job->layers[layer].name, Milliseconds(waited),
              absl::StrCat("by ", SchemeName(route.scheme), ", ",
                           WireTypeName(route.wire)));
  }
  text += table.Text();
  if (count > kLayersShown) {
    absl::StrAppend(&text, "  and ", count - kLayersShown, " other layers\n");
  }
  return text;
}

nlohmann::ordered_json ExplainJson(const JobTrace& trace,
                                   const TraceSummary& summary,
                                   const Diagnosis& diagnosis,
                                   const std::optional<Forecast>& forecast) {
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const TraceSummary::Worker& worker : summary.workers) {
    workers.push_back(
        {{"name", worker.name},
         {"computing_seconds", absl::ToDoubleSeconds(worker.step.computing())},
         {"waiting_seconds", absl::ToDoubleSeconds(worker.step.waiting)},
         {"turn_seconds", absl::ToDoubleSeconds(worker.step.turn)}});
  }
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const auto& [layer, waited] : summary.layers) {
    layers.push_back({{"name", trace.job->layers[layer].name},
                      {"scheme", SchemeName(trace.job->routes[layer].scheme)},
                      {"waited_seconds", absl::ToDoubleSeconds(waited)}});
  }
  return {{"first_step", trace.first_step},
          {"last_step", trace.last_step},
          {"step_seconds", diagnosis.iteration_seconds},
          {"verdict", DiagnosisJson(diagnosis)},
          {"workers", workers},
          {"layers", layers},
          {"forecast",
           forecast.has_value()
               ? ForecastJson(forecast->plan.report, forecast->plan.forecast)
               : nlohmann::ordered_json()}};
}

class ExplainCommand final : public Command {
 public:
  ExplainCommand()
      : Command("explain",
                "Says what limits a job, by a file of `nereusctl trace`: "
                "computing, the network or a worker, for which layers workers "
                "wait, and what another scheme would change") {}

 private:
  void AddFlags(CLI::App& app) override {
    app.add_option("file", file_, "a file of `nereusctl trace`")->required();
    AddSwitch(app, "all-layers", all_layers_,
              "give each layer a line, also where layers are equal");
    json_.Register(app);
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const JobTrace trace = NEREUS_TRY(ReadTraceArchive(file_));
    const TraceSummary summary = NEREUS_TRY(Summarise(trace));
    const std::optional<Forecast> forecast =
        NEREUS_TRY(MakeJobForecast(trace, summary));
    Diagnosis diagnosis = DiagnosisOf(trace, summary);
    if (forecast.has_value()) diagnosis.advice = forecast->advice;
    std::string text =
        absl::StrCat(FormatDiagnosis(diagnosis), SummaryText(trace, summary));
    if (forecast.has_value()) {
      absl::StrAppend(&text, "\n",
                      FormatForecastText(forecast->plan.report,
                                         forecast->plan.forecast, all_layers_));
    } else {
      absl::StrAppend(&text,
                      "What another scheme would change is not known: the "
                      "workers have not measured their links yet, or the job "
                      "has --cost=bytes.\n");
    }
    NEREUS_TRY(json_.Write(
        text, FormatJson(ExplainJson(trace, summary, diagnosis, forecast)),
        out));
    return kExitDone;
  }

  std::string file_;
  bool all_layers_ = false;  // --all-layers
  JsonFlag json_;            // --json
};

}  // namespace

std::unique_ptr<Command> MakeExplainCommand() {
  return std::make_unique<ExplainCommand>();
}

}  // namespace nereus
