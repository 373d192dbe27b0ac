#include "server/admin/plan_command.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "common/plan/plan_forecast.h"
#include "common/plan/plan_report.h"
#include "common/plan/planner.h"

namespace nereus {
namespace {

int Fail(const absl::Status& status, std::ostream& err) {
  err << "nereusctl plan: " << std::string(status.message()) << "\n";
  const bool usage =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return usage ? kExitUsage : kExitFailed;
}

Verdict VerdictOn(const ExplainedPlan& plan) {
  const PlanForecast& forecast = plan.forecast;
  Verdict verdict;
  verdict.workers = plan.report.options.cluster.workers;
  verdict.iteration_seconds =
      forecast.iteration_seconds_measured.value_or(forecast.iteration_seconds);
  verdict.compute_seconds = forecast.compute_seconds;
  verdict.single_node_seconds =
      absl::ToDoubleSeconds(TotalTime(forecast.model.times));
  return verdict;
}

}  // namespace

CLI::App* PlanCommand::Register(CLI::App& app) {
  subcommand_ = app.add_subcommand(
      "plan", "Shows how each layer of a model would travel, and why");
  question_flags_ =
      FlagsAddedBy(*subcommand_, [this] { question_.Register(*subcommand_); });
  AddSwitch(*subcommand_, "explain", explain_,
            "says what each layer would cost in time by each scheme");
  AddFlag(*subcommand_, "run", run_file_,
          "instead of a model and a cluster: what `nereusctl local "
          "--json=FILE` has written, for what was predicted and measured");
  subcommand_
      ->add_option("--json", json_file_,
                   "prints JSON; with =FILE, writes it to that file")
      ->expected(0, 1);
  return subcommand_;
}

absl::StatusOr<PlanCommand::Answer> PlanCommand::MakeAnswer() const {
  if (!run_file_.empty()) {
    NEREUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(run_file_));
    absl::StatusOr<ExplainedPlan> run = ExplainRun(text);
    if (!run.ok()) {
      return absl::DataLossError(
          absl::StrCat(run_file_, ": ", run.status().message()));
    }
    const Verdict verdict = VerdictOn(*run);
    return Answer{*std::move(run), verdict};
  }
  NEREUS_ASSIGN_OR_RETURN(const WhatIf what_if,
                          question_.Make(/*needs_times=*/false));
  NEREUS_ASSIGN_OR_RETURN(const PlanOptions options, PlanOptionsOf(what_if));
  NEREUS_ASSIGN_OR_RETURN(PlanReport report,
                          MakePlanReport(question_.model(), question_.batch(),
                                         what_if.layers, options));
  PlanForecast forecast = MakeForecast(report, *options.time);
  ExplainedPlan plan{std::move(report), std::move(forecast)};
  Verdict verdict = VerdictOn(plan);
  verdict.advice = FindAdvice(what_if);
  return Answer{std::move(plan), std::move(verdict)};
}

absl::Status PlanCommand::RefuseIdleFlags(const CLI::App& subcommand, int argc,
                                          char** argv) const {
  if (!run_file_.empty()) {
    return RefuseFlags(subcommand, argc, argv, question_flags_,
                       "with --run, which has its own");
  }
  return RefuseIdleJobFlags(subcommand, argc, argv, question_.spec(), {});
}

int PlanCommand::Run(std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Answer> answer = MakeAnswer();
  if (!answer.ok()) return Fail(answer.status(), err);
  const auto& [plan, verdict] = *answer;
  if (subcommand_ == nullptr || subcommand_->count("--json") == 0) {
    const bool all_layers = question_.all_layers();
    out << FormatVerdict(verdict) << "\n"
        << FormatPlanText(plan.report, all_layers);
    if (explain_ || !run_file_.empty()) {
      out << "\n" << FormatForecastText(plan.report, plan.forecast, all_layers);
    }
    return kExitDone;
  }
  const std::string json = FormatExplainedJson(plan, verdict);
  if (json_file_.empty()) {
    out << json << "\n";
    return kExitDone;
  }
  const absl::Status written = WriteTextFile(json_file_, json);
  return written.ok() ? kExitDone : Fail(written, err);
}

}  // namespace nereus
