#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "common/plan/plan_forecast.h"
#include "common/plan/plan_report.h"
#include "common/plan/planner.h"
#include "server/admin/commands.h"
#include "server/admin/diagnosis.h"
#include "server/admin/run_file.h"
#include "server/admin/what_if_flags.h"

namespace nereus {
namespace {

// Returns the diagnosis of a plan, for the measured time of an iteration if
// there is one, otherwise for the predicted time.
Diagnosis Diagnose(const ExplainedPlan& plan) {
  const PlanForecast& forecast = plan.forecast;
  Diagnosis diagnosis;
  diagnosis.workers = plan.report.options.cluster.workers;
  diagnosis.hosts = plan.report.options.cluster.hosts;
  diagnosis.iteration_seconds =
      forecast.iteration_seconds_measured.value_or(forecast.iteration_seconds);
  diagnosis.compute_seconds = forecast.compute_seconds;
  diagnosis.single_node_seconds =
      absl::ToDoubleSeconds(TotalTime(forecast.model.times));
  return diagnosis;
}

class PlanCommand final : public Command {
 public:
  PlanCommand()
      : Command("plan",
                "Shows how each layer of a model would travel, and why") {}

  absl::Status RefuseIdleFlags(int argc, char** argv) const override {
    if (!run_file_.empty()) {
      return RefuseFlags(app(), argc, argv, question_flags_,
                         "with --run, which has its own");
    }
    return RefuseIdleJobFlags(app(), argc, argv, question_.spec(), {});
  }

 private:
  struct Answer {
    ExplainedPlan plan;
    Diagnosis diagnosis;
  };

  void AddFlags(CLI::App& app) override {
    question_flags_ = FlagsAddedBy(app, [&] { question_.Register(app); });
    AddSwitch(app, "explain", explain_,
              "show the time of an iteration if a layer went by each scheme");
    AddFlag(app, "run", run_file_,
            "instead of a model and a cluster: a file of `nereusctl local "
            "--json=FILE`, to compare predicted with measured times");
    json_.Register(app);
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const Answer answer = NEREUS_TRY(MakeAnswer());
    const auto& [plan, diagnosis] = answer;
    const bool all_layers = question_.all_layers();
    std::string text = absl::StrCat(FormatDiagnosis(diagnosis), "\n",
                                    FormatPlanText(plan.report, all_layers));
    if (explain_ || !run_file_.empty()) {
      absl::StrAppend(
          &text, "\n",
          FormatForecastText(plan.report, plan.forecast, all_layers));
    }
    NEREUS_TRY(json_.Write(text, FormatExplainedJson(plan, diagnosis), out));
    return kExitDone;
  }

  // Returns the last plan of the job in run_file_ if --run is given, otherwise
  // the plan of question_.
  absl::StatusOr<Answer> MakeAnswer() const {
    if (!run_file_.empty()) {
      const std::string text = NEREUS_TRY(ReadTextFile(run_file_));
      absl::StatusOr<ExplainedPlan> run = ExplainRun(text);
      if (!run.ok()) {
        return InvalidArgumentError(run_file_, ": ", run.status().message());
      }
      const Diagnosis diagnosis = Diagnose(*run);
      return Answer{*std::move(run), diagnosis};
    }
    const WhatIf what_if = NEREUS_TRY(question_.Make(/*needs_times=*/false));
    const PlanOptions options = NEREUS_TRY(PlanOptionsOf(what_if));
    PlanReport report = NEREUS_TRY(MakePlanReport(
        question_.model(), question_.batch(), what_if.layers, options));
    PlanForecast forecast = MakeForecast(report, *options.time);
    ExplainedPlan plan{std::move(report), std::move(forecast)};
    Diagnosis diagnosis = Diagnose(plan);
    diagnosis.advice = FindAdvice(what_if);
    return Answer{std::move(plan), std::move(diagnosis)};
  }

  WhatIfFlags question_;                     // Model, cluster, job.
  std::vector<std::string> question_flags_;  // Flags of question_.
  bool explain_ = false;                     // --explain
  std::string run_file_;                     // --run. Empty: not given.
  JsonFlag json_;                            // --json
};

}  // namespace

std::unique_ptr<Command> MakePlanCommand() {
  return std::make_unique<PlanCommand>();
}

}  // namespace nereus
