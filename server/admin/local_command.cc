#include "server/admin/local_command.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/file_storage.h"
#include "server/admin/local_report.h"
#include "server/admin/progress_display.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

constexpr int kExitSignalBase = 128;

absl::StatusOr<std::string> FindProgram(const std::string& given,
                                        const std::string& name,
                                        const std::string& build_path) {
  std::vector<std::string> places = {given};
  if (given.empty()) {
    std::error_code error;
    const std::filesystem::path own =
        std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) {
      return absl::InternalError(
          absl::StrCat("/proc/self/exe: ", error.message()));
    }
    const std::filesystem::path folder = own.parent_path();
    places = {(folder / name).string(),
              (folder / build_path).lexically_normal().string()};
  }
  for (const std::string& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place;
  }
  return absl::NotFoundError(
      absl::StrCat("no program ", name, " at ", absl::StrJoin(places, " or ")));
}

void AddTrainingFlags(CLI::App& app, LocalOptions& options) {
  AddFlag(app, "model", options.training.model, "what to train: mlp or cnn");
  AddFlag(app, "data", options.training.data,
          "folder of images; without it, they are generated");
  AddFlag(app, "holdout", options.training.holdout,
          "share of the images kept for the test");
  AddFlag(app, "batch", options.training.batch, "images per worker and step");
  AddFlag(app, "epochs", options.training.epochs, "passes over the images");
  AddFlag(app, "seed", options.training.seed,
          "of weights, order and generated images");
  AddFlag(app, "limit", options.training.limit,
          "use only the first so many images; 0: all");
  AddFlag(app, "threads", options.training.threads,
          "computing threads per worker");
  AddFlag(app, "device", options.training.device,
          "what all workers compute on: cpu, or cuda:N");
  AddFlag(app, "delay-in-turn", options.training.delay_in_turn,
          "seconds that a worker is late, another one in each step: for tests");
}

void AddFaultFlags(CLI::App& app, LocalOptions& options) {
  AddFlag(app, "restarts", options.restarts,
          "start so many processes that die again, instead of ending the job");
  AddFlag(app, "checkpoint-dir", options.checkpoint_dir,
          "folder for checkpoints");
  AddFlag(app, "restore", options.restore,
          "go on from a checkpoint: latest, or its round");
}

// The processes get the job from its file. Otherwise a variable that a flag of
// this program overrides would count for them.
void UnsetJobVariables() {
  for (const JobOption& option : JobOptionTable()) {
    unsetenv(FlagVariable(option.name).c_str());
  }
}

// Where the trained model is, or how to keep it.
std::string DescribeModel(const LocalReport& report) {
  const std::string& folder = report.options.checkpoint_dir;
  if (folder.empty()) {
    return "model          not saved; --checkpoint-dir=DIR keeps it\n";
  }
  if (report.saved_round < report.last_step) {
    return absl::StrCat("model          NOT SAVED as of the last step, ",
                        report.last_step, ", in ", folder,
                        report.saved_round < 0
                            ? "; no checkpoint was made"
                            : absl::StrCat("; the last one made was of round ",
                                           report.saved_round),
                        "; the log says why\n");
  }
  return absl::StrCat("model          ", folder, "/",
                      CheckpointFolder(report.saved_round),
                      "; nereusctl export ", folder,
                      " --out=model.safetensors writes it to one file\n");
}

// Of a run that did not end well there is no report, nor an empty one.
void RemoveIfEmpty(const std::string& file) {
  std::error_code error;
  if (std::filesystem::file_size(file, error) == 0 && !error) {
    std::filesystem::remove(file, error);
  }
}

const char* SignalVerb(int signal) {
  return signal == SIGINT ? "interrupted" : "asked to end";
}

}  // namespace

absl::StatusOr<LocalPrograms> FindPrograms(const std::string& server,
                                           const std::string& worker) {
  // From server/admin/ in Bazel's tree of outputs.
  LocalPrograms programs;
  NEREUS_ASSIGN_OR_RETURN(programs.server, FindProgram(server, "nereus-server",
                                                       "../nereus-server"));
  NEREUS_ASSIGN_OR_RETURN(programs.worker,
                          FindProgram(worker, "nereus-worker",
                                      "../../worker/trainer/nereus-worker"));
  return programs;
}

CLI::App* LocalCommand::Register(CLI::App& app) {
  subcommand_ = app.add_subcommand(
      "local", "Trains a model with several processes on this machine");
  AddTrainingFlags(*subcommand_, options_);
  job_.spec = options_.spec;
  AddJobFlags(*subcommand_, job_);
  AddSharedMemoryFlag(*subcommand_, options_.shared_memory);
  AddFaultFlags(*subcommand_, options_);
  AddCommonFlags(*subcommand_, "nereusctl", options_.log_level);
  AddFlag(*subcommand_, "json", json_file_, "file to write the report to");
  AddFlag(*subcommand_, "server-binary", server_binary_,
          "path of nereus-server; without it, found beside this program");
  AddFlag(*subcommand_, "worker-binary", worker_binary_,
          "path of nereus-worker; without it, found beside this program");
  return subcommand_;
}

absl::Status LocalCommand::RefuseIdleFlags(const CLI::App& subcommand, int argc,
                                           char** argv) const {
  NEREUS_RETURN_IF_ERROR(
      RefuseIdleJobFlags(subcommand, argc, argv, job_.spec, job_.file_options));
  if (!options_.checkpoint_dir.empty()) return absl::OkStatus();
  return RefuseFlags(subcommand, argc, argv,
                     {"--checkpoint-every", "--checkpoints-kept", "--restore"},
                     "without --checkpoint-dir");
}

std::string LocalCommand::HowToGoOn() const {
  if (!std::filesystem::is_directory(options_.checkpoint_dir)) return "";
  const auto storage = FileStorage::Open(options_.checkpoint_dir);
  if (!storage.ok()) return "";
  const auto newest = FindNewest(**storage);
  if (!newest.ok() || !newest->has_value()) return "";
  return absl::StrCat(
      "; --restore=latest goes on from the checkpoint of round ",
      (*newest)->record.round, " in ", options_.checkpoint_dir);
}

int LocalCommand::Run(std::ostream& out, std::ostream& err) {
  const auto fail = [&](const absl::Status& status, int code) {
    RemoveIfEmpty(json_file_);
    err << "nereusctl local: " << std::string(status.message()) << std::endl;
    return code;
  };
  options_.spec = job_.spec;
  const absl::Status valid = options_.Validate();
  if (!valid.ok()) {
    return fail(absl::InvalidArgumentError(WithFlagNames(
                    *subcommand_, valid.message(), /*others=*/{})),
                kExitUsage);
  }
  const absl::StatusOr<LocalPrograms> programs =
      FindPrograms(server_binary_, worker_binary_);
  if (!programs.ok()) return fail(programs.status(), kExitFailed);

  // Before the work, not after it: the path may be wrong. A job that fails
  // leaves the report of the one before.
  if (!json_file_.empty() && !std::ofstream(json_file_, std::ios::app)) {
    return fail(absl::UnavailableError(absl::StrCat("cannot write ", json_file_,
                                                    ": ", strerror(errno))),
                kExitFailed);
  }
  UnsetJobVariables();
  ProgressDisplay display(&err, isatty(STDERR_FILENO) != 0);
  LocalJob job(options_, *programs, &display);
  absl::StatusOr<LocalOutcome> outcome = job.Run();
  if (!outcome.ok()) {
    return fail(absl::Status(outcome.status().code(),
                             absl::StrCat(outcome.status().message(),
                                          job.has_run() ? HowToGoOn() : "")),
                kExitFailed);
  }
  if (outcome->signal != 0) {
    RemoveIfEmpty(json_file_);
    err << "nereusctl local: " << SignalVerb(outcome->signal)
        << ", all processes are stopped" << HowToGoOn() << std::endl;
    return kExitSignalBase + outcome->signal;
  }

  const absl::StatusOr<LocalReport> report =
      MakeLocalReport(options_, std::move(outcome->workers),
                      {outcome->restarts, outcome->lost});
  if (!report.ok()) return fail(report.status(), kExitFailed);
  out << FormatLocalText(*report) << DescribeModel(*report) << std::flush;
  const absl::Status kept = CheckOutcome(*report);
  return kept.ok() ? kExitDone : fail(kept, kExitFailed);
}

absl::Status LocalCommand::CheckOutcome(const LocalReport& report) const {
  if (!json_file_.empty()) {
    std::ofstream json(json_file_);
    json << FormatLocalJson(report) << std::endl;
    if (!json) {
      return absl::UnavailableError(absl::StrCat("cannot write ", json_file_));
    }
  }
  // With another quorum, late gradients count, but not every worker has seen
  // them.
  const bool may_differ = options_.spec.options.quorum != Quorum::kAll;
  if (!report.replicas_equal && !may_differ) {
    return absl::InternalError("the workers ended with different parameters");
  }
  if (!options_.checkpoint_dir.empty() &&
      report.saved_round < report.last_step) {
    return absl::DataLossError("the trained model was not saved");
  }
  return absl::OkStatus();
}

}  // namespace nereus
