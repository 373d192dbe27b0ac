#include "server/admin/plan_command.h"

#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/flags/model_file.h"
#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"
#include "common/plan/plan_forecast.h"
#include "common/plan/plan_report.h"
#include "common/plan/planner.h"
#include "common/plan/scheme.h"

namespace nereus {
namespace {

int Fail(const absl::Status& status, std::ostream& err) {
  err << "nereusctl plan: " << std::string(status.message()) << "\n";
  const bool usage =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return usage ? kExitUsage : kExitFailed;
}

}  // namespace

CLI::App* PlanCommand::Register(CLI::App& app) {
  subcommand_ = app.add_subcommand(
      "plan", "Shows how each layer of a model would travel, and why");
  AddFlag(*subcommand_, "model", model_, DescribeModelFlag());
  AddFlag(*subcommand_, "workers", workers_, "machines with a worker")
      ->check(CLI::Range(int64_t{1}, kWorkersMax));
  AddFlag(*subcommand_, "servers", servers_,
          "server shards, on the same machines; 0: as many as workers")
      ->check(CLI::Range(int64_t{0}, kServersMax));
  AddFlag(*subcommand_, "batch", batch_, "samples per worker and step")
      ->check(CLI::Range(int64_t{1}, kBatchMax));
  AddPlanFlags(*subcommand_, rules_, /*knows_times=*/true);
  AddOverlapFlag(*subcommand_, overlap_);
  AddFusionFlag(*subcommand_, rules_.fusion_bytes, rules_.choose_fusion);
  times_.AddLinkFlags(*subcommand_);
  times_.AddComputeFlags(*subcommand_);
  AddSwitch(*subcommand_, "explain", explain_,
            "says what each layer would cost in time by each scheme; needs "
            "--compute, --compute-trace or --run");
  AddFlag(*subcommand_, "run", run_file_,
          "with --explain, instead of a model and times: what `nereusctl local "
          "--json=FILE` has written, for what was predicted and measured");
  subcommand_
      ->add_option("--json", json_file_,
                   "prints JSON; with =FILE, writes it to that file")
      ->expected(0, 1);
  return subcommand_;
}

absl::StatusOr<PlanOptions> PlanCommand::MakeOptions(
    absl::Span<const LayerSpec> layers) const {
  PlanOptions options;
  options.cluster = {workers_, servers_ > 0 ? servers_ : workers_};
  options.rules = rules_;
  if (!times_.has_times()) {
    if (!explain_ && rules_.cost == CostKind::kBytes) return options;
    return absl::InvalidArgumentError(
        "--explain and --cost=time need --compute, --compute-trace or --run");
  }
  TimeModel model;
  NEREUS_ASSIGN_OR_RETURN(model.times, times_.Times(layers));
  NEREUS_ASSIGN_OR_RETURN(model.link, times_.Link());
  model.decoupled = overlap_ == Overlap::kDecoupled;
  options.time = std::move(model);
  if (subcommand_->count("--cost") == 0) options.rules.cost = CostKind::kTime;
  return options;
}

absl::StatusOr<ExplainedPlan> PlanCommand::Explain() const {
  if (!run_file_.empty()) {
    NEREUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(run_file_));
    absl::StatusOr<ExplainedPlan> run = ExplainRun(text);
    if (run.ok()) return run;
    return absl::DataLossError(
        absl::StrCat(run_file_, ": ", run.status().message()));
  }
  if (model_.empty() || workers_ == 0) {
    return absl::InvalidArgumentError("--model and --workers are required");
  }
  NEREUS_ASSIGN_OR_RETURN(std::vector<LayerSpec> layers,
                          LoadModelOrFile(model_, batch_));
  NEREUS_ASSIGN_OR_RETURN(const PlanOptions options, MakeOptions(layers));
  NEREUS_ASSIGN_OR_RETURN(
      PlanReport report,
      MakePlanReport(model_, batch_, std::move(layers), options));
  ExplainedPlan plan{std::move(report), std::nullopt};
  if (explain_) plan.forecast = MakeForecast(plan.report, *options.time);
  return plan;
}

int PlanCommand::Run(std::ostream& out, std::ostream& err) {
  const absl::StatusOr<ExplainedPlan> plan = Explain();
  if (!plan.ok()) return Fail(plan.status(), err);
  if (subcommand_ == nullptr || subcommand_->count("--json") == 0) {
    out << FormatPlanText(plan->report);
    if (plan->forecast.has_value()) {
      out << "\n" << FormatForecastText(plan->report, *plan->forecast);
    }
    return kExitDone;
  }
  const std::string json = FormatExplainedJson(*plan);
  if (json_file_.empty()) {
    out << json << "\n";
    return kExitDone;
  }
  const absl::Status written = WriteTextFile(json_file_, json);
  return written.ok() ? kExitDone : Fail(written, err);
}

}  // namespace nereus
