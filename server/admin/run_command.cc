#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/flags/model_file.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"
#include "server/admin/find_program.h"
#include "server/admin/local_job.h"
#include "server/admin/local_options.h"
#include "server/admin/prefixed_lines.h"
#include "server/admin/program_workers.h"
#include "server/admin/progress_display.h"
#include "server/admin/run_arguments.h"

namespace nereus {
namespace {

// Number of restarts by default. A worker that is killed, perhaps for lack of
// memory, costs the job a second if it is started again. A program that needs
// too much memory each time ends the job after a few starts.
constexpr int kRestarts = 3;

constexpr char kExamples[] =
    "Usage with a program: nereusctl run [-np N] [OPTIONS] -- PROGRAM "
    "[ARGUMENTS]\n\n"
    "PROGRAM finds its job in its environment: NEREUS_COORDINATOR, NEREUS_NAME "
    "and others, which ClientOptions::FromEnvironment and nereus-worker read; "
    "NEREUS_LOCAL_RANK is its number on this machine, from 0 to "
    "NEREUS_LOCAL_SIZE - 1. The exit code is that of the first program that "
    "fails, or 128 plus the signal that killed it.\n\n"
    "Examples:\n"
    "  nereusctl run -np 4 -- ./train --epochs=3\n"
    "  nereusctl run -np 2 --learning-rate=0.1 --update=adam -- ./train\n"
    "  nereusctl run -np 4 --checkpoint-dir=ck --restore=latest -- ./train";

class RunCommand final : public Command {
 public:
  RunCommand()
      : Command("run",
                "Runs a program of yours as the workers of a job on this "
                "machine") {
    options_.hosts = 1;
    options_.restarts = kRestarts;
  }

  void TakeRest(std::vector<std::string>& arguments) override {
    command_ = TakeProgram(app(), arguments);
  }

  absl::Status RefuseIdleFlags(int argc, char** argv) const override {
    return RefuseIdleLocalFlags(app(), argc, argv, options_, job_);
  }

 private:
  void AddFlags(CLI::App& app) override {
    app.footer(kExamples);
    AddLocalJobFlags(app, options_, job_);
    app.get_option("--workers")
        ->description("number of programs to start; short: -np N");
    app.get_option("--restarts")
        ->description(
            "number of times that a process that was killed (SIGKILL) is "
            "started again, before the job fails. A program that exits with "
            "an error or crashes is not: it would fail again");
    AddFlag(app, "json", json_file_,
            "file to write a summary to, as JSON: exit_code, seconds, restarts "
            "and the end of each worker");
    AddFlag(app, "server-binary", server_binary_,
            "path of nereus-server; without it, the one beside this program");
  }

  absl::StatusOr<int> Execute(std::ostream& out, std::ostream& err) override {
    options_.spec = job_.spec;
    NEREUS_TRY(options_.Validate());
    if (command_.empty()) {
      return InvalidArgumentError(
          "no program to run: nereusctl run -np 4 -- PROGRAM ARGUMENTS");
    }
    command_[0] = NEREUS_TRY(FindCommand(command_[0]));
    const std::string server = NEREUS_TRY(
        FindProgram(server_binary_, "nereus-server", "../nereus-server"));
    // A path that cannot be written is an error now, not after the training.
    if (!json_file_.empty() && !std::ofstream(json_file_)) {
      return UnavailableError("cannot write ", json_file_, ": ",
                              strerror(errno));
    }
    PrefixedLines out_lines(&out, isatty(STDOUT_FILENO) != 0);
    PrefixedLines err_lines(&err, isatty(STDERR_FILENO) != 0);
    ProgramWorkers workers(options_, command_, ChooseThreads(err), &out_lines,
                           &err_lines);
    const absl::Time started_at = SteadyNow();
    int code = RunJob(server, workers, err);
    if (code == kExitDone && !out_lines.ok()) {
      code = Fail(
          UnavailableError("standard output cannot be written: lines are lost"),
          err);
    }
    if (!json_file_.empty()) {
      NEREUS_TRY(WriteTextFile(
          json_file_, Summary(workers, code, SteadyNow() - started_at)));
    }
    return code;
  }

  // Returns the number of threads for each program. Absent: the user has chosen
  // it.
  std::optional<int> ChooseThreads(std::ostream& err) const {
    if (std::getenv("OMP_NUM_THREADS") != nullptr) return std::nullopt;
    const int cores = UsableCores();
    const int threads = ThreadsOfEach(cores, options_.spec.workers);
    err << "OMP_NUM_THREADS=" << threads
        << " for each program: " << options_.spec.workers << " share " << cores
        << " cores; set the variable to choose another number" << std::endl;
    return threads;
  }

  // Runs the job, tells how it failed, and returns the exit code.
  int RunJob(const std::string& server, ProgramWorkers& workers,
             std::ostream& err) const {
    // Programs write among the lines of the job, so no line is drawn in place.
    ProgressDisplay display(&err, /*is_terminal=*/false);
    LocalJob job(options_, server, &workers, &display);
    const absl::StatusOr<LocalOutcome> outcome = job.Run();
    if (!outcome.ok()) {
      const int code = Fail(outcome.status(), err);
      return job.failed_worker().has_value() ? ShellCode(*job.failed_worker())
                                             : code;
    }
    if (outcome->signal != 0) {
      err << "nereusctl run: "
          << (outcome->signal == SIGINT ? "interrupted" : "asked to end")
          << ", all processes are stopped" << std::endl;
      return ShellCode({0, outcome->signal});
    }
    if (outcome->is_not_saved) {
      return Fail(
          DataLossError("the model of the last step was not saved in ",
                        options_.checkpoint_dir, "; the lines above say why"),
          err);
    }
    return kExitDone;
  }

  static std::string Summary(const ProgramWorkers& workers, int code,
                             absl::Duration duration) {
    nlohmann::ordered_json ends = nlohmann::ordered_json::array();
    int restarts = 0;
    for (const ProgramWorkers::End& end : workers.ends()) {
      restarts += std::max(0, end.starts - 1);
      const bool has_code = end.exit.has_value() && end.exit->signal == 0;
      const bool has_signal = end.exit.has_value() && end.exit->signal != 0;
      nlohmann::ordered_json json = {
          {"starts", end.starts}, {"exit_code", nullptr}, {"signal", nullptr}};
      if (has_code) json["exit_code"] = end.exit->code;
      if (has_signal) json["signal"] = end.exit->signal;
      ends.push_back(std::move(json));
    }
    return FormatJson({{"exit_code", code},
                       {"seconds", absl::ToDoubleSeconds(duration)},
                       {"restarts", restarts},
                       {"workers", std::move(ends)}}) +
           "\n";
  }

  LocalJobOptions options_;           // Options from the flags of run.
  JobFlags job_;                      // Options from the flags of a job.
  std::vector<std::string> command_;  // Program and its arguments.
  std::string json_file_;             // --json. Empty: no file.
  std::string server_binary_;         // --server-binary
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand() {
  return std::make_unique<RunCommand>();
}

}  // namespace nereus
