#include "server/admin/plan_command.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"
#include "common/plan/plan_report.h"
#include "common/plan/planner.h"
#include "common/plan/scheme.h"

namespace nereus {
namespace {

// Far above any real table, so that a wrong file name does not fill memory.
constexpr int64_t kModelFileBytesMax = int64_t{16} << 20;

bool IsFileName(const std::string& model) {
  return absl::StrContains(model, "/") || absl::EndsWith(model, ".csv");
}

absl::StatusOr<std::string> ReadFile(const std::string& name) {
  errno = 0;
  std::ifstream file(name, std::ios::binary);
  if (!file) {
    return absl::UnavailableError(
        absl::StrCat("cannot open ", name, ": ", strerror(errno)));
  }
  std::string text(kModelFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || !file.eof()) {
    return absl::UnavailableError(
        file.gcount() > kModelFileBytesMax
            ? absl::StrCat(name, " has more than ", kModelFileBytesMax,
                           " bytes")
            : absl::StrCat("cannot read ", name, ": ", strerror(errno)));
  }
  text.resize(file.gcount());
  return text;
}

absl::StatusOr<std::vector<LayerSpec>> LoadModelOrFile(const std::string& model,
                                                       int64_t batch) {
  if (!IsFileName(model)) return LoadModel(model, batch);
  NEREUS_ASSIGN_OR_RETURN(const std::string text, ReadFile(model));
  absl::StatusOr<std::vector<LayerSpec>> layers = ParseModelTable(text, batch);
  if (!layers.ok()) {
    return absl::DataLossError(
        absl::StrCat(model, ": ", layers.status().message()));
  }
  return layers;
}

absl::Status WriteFile(const std::string& name, const std::string& text) {
  errno = 0;
  std::ofstream file(name, std::ios::binary);
  file << text << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write ", name, ": ", strerror(errno)));
}

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
  std::string models;
  for (const std::string& name : ModelNames()) {
    absl::StrAppend(&models, models.empty() ? "" : ", ", name);
  }
  AddFlag(*subcommand_, "model", model_,
          absl::StrCat("a known model (", models,
                       ") or a table of layers: a file ending in .csv or with "
                       "a / in its name"))
      ->required();
  AddFlag(*subcommand_, "workers", workers_, "machines with a worker")
      ->check(CLI::Range(int64_t{1}, kWorkersMax))
      ->required();
  AddFlag(*subcommand_, "servers", servers_,
          "server shards, on the same machines; 0: as many as workers")
      ->check(CLI::Range(int64_t{0}, kServersMax));
  AddFlag(*subcommand_, "batch", batch_, "samples per worker and step")
      ->check(CLI::Range(int64_t{1}, kBatchMax));
  AddSchemeFlags(*subcommand_, scheme_, cost_);
  subcommand_
      ->add_option("--json", json_file_,
                   "prints JSON; with =FILE, writes it to that file")
      ->expected(0, 1);
  return subcommand_;
}

int PlanCommand::Run(std::ostream& out, std::ostream& err) {
  PlanOptions options;
  options.cluster = {workers_, servers_ > 0 ? servers_ : workers_};
  options.forced = ForcedScheme(scheme_);
  options.cost = cost_;

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
  const absl::Status written = WriteFile(json_file_, json);
  return written.ok() ? kExitDone : Fail(written, err);
}

}  // namespace nereus
