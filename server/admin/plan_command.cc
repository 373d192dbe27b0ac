#include "server/admin/plan_command.h"

#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/flags/model_file.h"
#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"
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
  AddFlag(*subcommand_, "model", model_, DescribeModelFlag())->required();
  AddFlag(*subcommand_, "workers", workers_, "machines with a worker")
      ->check(CLI::Range(int64_t{1}, kWorkersMax))
      ->required();
  AddFlag(*subcommand_, "servers", servers_,
          "server shards, on the same machines; 0: as many as workers")
      ->check(CLI::Range(int64_t{0}, kServersMax));
  AddFlag(*subcommand_, "batch", batch_, "samples per worker and step")
      ->check(CLI::Range(int64_t{1}, kBatchMax));
  AddPlanFlags(*subcommand_, rules_);
  subcommand_
      ->add_option("--json", json_file_,
                   "prints JSON; with =FILE, writes it to that file")
      ->expected(0, 1);
  return subcommand_;
}

int PlanCommand::Run(std::ostream& out, std::ostream& err) {
  PlanOptions options;
  options.cluster = {workers_, servers_ > 0 ? servers_ : workers_};
  options.rules = rules_;

  absl::StatusOr<std::vector<LayerSpec>> layers =
      LoadModelOrFile(model_, batch_);
  if (!layers.ok()) return Fail(layers.status(), err);
  const absl::StatusOr<PlanReport> report =
      MakePlanReport(model_, batch_, *std::move(layers), options);
  if (!report.ok()) return Fail(report.status(), err);

  if (subcommand_ == nullptr || subcommand_->count("--json") == 0) {
    out << FormatPlanText(*report);
    return kExitDone;
  }
  const std::string json = FormatPlanJson(*report);
  if (json_file_.empty()) {
    out << json << "\n";
    return kExitDone;
  }
  const absl::Status written = WriteTextFile(json_file_, json);
  return written.ok() ? kExitDone : Fail(written, err);
}

}  // namespace nereus
