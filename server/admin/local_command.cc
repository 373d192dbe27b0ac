#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/flags/model_file.h"
#include "server/admin/checkpoint_folder.h"
#include "server/admin/commands.h"
#include "server/admin/find_program.h"
#include "server/admin/local_job.h"
#include "server/admin/local_options.h"
#include "server/admin/local_report.h"
#include "server/admin/progress_display.h"
#include "server/admin/reference_workers.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

// Returns the last line of the report: the place of the trained model, or how
// to keep it.
std::string DescribeModel(const LocalReport& report) {
  const std::string& folder = report.options.checkpoint_dir;
  if (folder.empty()) {
    return "model          not saved; --checkpoint-dir=DIR keeps it\n";
  }
  if (report.saved_round >= report.last_step) {
    return absl::StrCat("model          ", folder, "/",
                        CheckpointFolder(report.saved_round),
                        "; nereusctl export ", folder,
                        " --out=model.safetensors writes it to one file\n");
  }
  return absl::StrCat("model          NOT SAVED as of the last step, ",
                      report.last_step, ", in ", folder,
                      report.saved_round < 0
                          ? "; no checkpoint was made"
                          : absl::StrCat("; the last checkpoint is of round ",
                                         report.saved_round),
                      "; the log says why\n");
}

class LocalCommand final : public Command {
 public:
  LocalCommand()
      : Command("local",
                "Trains a model with several processes on this machine") {}

  absl::Status RefuseIdleFlags(int argc, char** argv) const override {
    return RefuseIdleLocalFlags(app(), argc, argv, options_, job_);
  }

  void BeginLog(int argc, char** argv) const override {
    BeginLocalLog(app(), argc, argv, options_, job_);
  }

 private:
  void AddFlags(CLI::App& app) override {
    AddLocalFlags(app, options_, job_);
    AddFlag(app, "json", json_file_, "file to write the report to, as JSON");
    AddFlag(app, "server-binary", server_binary_,
            "path of nereus-server; without it, the one beside this program");
    AddFlag(app, "worker-binary", worker_binary_,
            "path of nereus-worker; without it, the one beside this program");
  }

  absl::StatusOr<int> Execute(std::ostream& out, std::ostream& err) override {
    options_.spec = job_.spec;
    NEREUS_TRY(options_.Validate());
    // Checks now, and not after the training, that the file can be written.
    // Leaves the report of an earlier job in it until this job is done.
    if (!json_file_.empty() && !std::ofstream(json_file_, std::ios::app)) {
      return UnavailableError("cannot write ", json_file_, ": ",
                              strerror(errno));
    }
    absl::StatusOr<int> code = RunJob(out, err);
    // Removes the file if it is empty: the check above may have made it.
    std::error_code error;
    if (std::filesystem::file_size(json_file_, error) == 0 && !error) {
      std::filesystem::remove(json_file_, error);
    }
    return code;
  }

  // Runs the job, and reports on it. Writes json_file_ only if the job is done.
  absl::StatusOr<int> RunJob(std::ostream& out, std::ostream& err) {
    // The last arguments are paths in Bazel's tree, relative to server/admin/.
    const std::string server = NEREUS_TRY(
        FindProgram(server_binary_, "nereus-server", "../nereus-server"));
    const std::string program = NEREUS_TRY(FindProgram(
        worker_binary_, "nereus-worker", "../../worker/trainer/nereus-worker"));
    ReferenceWorkers workers(options_, program);
    ProgressDisplay display(&err, isatty(STDERR_FILENO) != 0,
                            options_.log.format);
    LocalJob job(options_, server, &workers, &display);
    absl::StatusOr<LocalOutcome> outcome = job.Run();
    if (!outcome.ok()) {
      return absl::Status(outcome.status().code(),
                          absl::StrCat(outcome.status().message(),
                                       workers.has_run() ? HowToGoOn() : ""));
    }
    if (outcome->signal != 0) {
      display.PrintLine(absl::StrCat(
          "nereusctl local: ",
          outcome->signal == SIGINT ? "interrupted" : "asked to end",
          ", all processes are stopped", HowToGoOn()));
      return ShellCode({0, outcome->signal});
    }
    const LocalReport report =
        NEREUS_TRY(MakeLocalReport(options_, *std::move(outcome)));
    out << FormatLocalText(report) << DescribeModel(report) << std::flush;
    NEREUS_TRY(Conclude(report));
    return kExitDone;
  }

  // Returns "; --restore=latest goes on from ..." for the message of a job that
  // ended early, or "" if there is no checkpoint.
  std::string HowToGoOn() const {
    const auto storage = OpenCheckpointFolder(options_.checkpoint_dir);
    if (!storage.ok()) return "";
    const auto newest = FindNewest(**storage);
    if (!newest.ok() || !newest->has_value()) return "";
    return absl::StrCat(
        "; --restore=latest goes on from the checkpoint of round ",
        (*newest)->record.round, " in ", options_.checkpoint_dir);
  }

  // Writes the report to json_file_, and checks the outcome of the job. Errors:
  // kUnavailable, the file cannot be written; kInternal, the workers'
  // parameters differ; kDataLoss, the model of the last step was not saved.
  absl::Status Conclude(const LocalReport& report) const {
    if (!json_file_.empty()) {
      NEREUS_TRY(WriteTextFile(json_file_, FormatLocalJson(report)));
    }
    // In partial rounds (all other quorums), a worker may end before the late
    // gradients of other workers are added to its parameters.
    const bool may_differ = options_.spec.options.rounds.quorum != Quorum::kAll;
    if (!report.replicas_equal && !may_differ) {
      return InternalError("the workers ended with different parameters");
    }
    if (!options_.checkpoint_dir.empty() &&
        report.saved_round < report.last_step) {
      return DataLossError("the trained model was not saved");
    }
    return absl::OkStatus();
  }

  LocalOptions options_;       // Options from the flags of local.
  JobFlags job_;               // Options from the flags of a job.
  std::string json_file_;      // --json. Empty: no file.
  std::string server_binary_;  // --server-binary
  std::string worker_binary_;  // --worker-binary
};

}  // namespace

std::unique_ptr<Command> MakeLocalCommand() {
  return std::make_unique<LocalCommand>();
}

}  // namespace nereus
