#include <signal.h>
#include <unistd.h>

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
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/flags/model_file.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"
#include "server/admin/find_program.h"
#include "server/admin/local_job.h"
#include "server/admin/local_options.h"
#include "server/admin/patient_output.h"
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

// Returns the variables of flags of `nereusctl run` that the programs must not
// inherit. A program can have a flag of the same name with another meaning:
// NEREUS_JSON, for example, would also set --json of nereus-worker. The
// programs inherit NEREUS_LOG_LEVEL, which means the same to them. They get
// --log-format as NEREUS_LOG_FORMAT (ProgramWorkers).
std::vector<std::string> OwnVariables(const CLI::App& app) {
  std::vector<std::string> variables;
  for (const CLI::Option* option : app.get_options()) {
    const std::string variable = option->get_envname();
    if (variable.empty() || variable == FlagVariable("log-level")) continue;
    variables.push_back(variable);
  }
  return variables;
}

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

  void BeginLog(int argc, char** argv) const override {
    BeginLocalLog(app(), argc, argv, options_, job_);
  }

 private:
  // End of the job.
  struct Ending {
    int code = kExitDone;     // Exit code of the command.
    std::string failed;       // Process that failed. Empty: none.
    std::string reason;       // Reason of the code. Empty: all went well.
    int restarts = 0;         // Number of restarts of workers and servers.
    absl::Duration duration;  // Time that the job took.
  };

  void AddFlags(CLI::App& app) override {
    app.footer(kExamples);
    AddLocalJobFlags(app, options_, job_);
    app.get_option("--workers")
        ->description("number of programs to start; short: -np N");
    app.get_option("--restarts")
        ->description(
            "number of restarts of processes of the job, in all, before the "
            "job fails. A program is started again only if it was killed "
            "(SIGKILL), or exits with code 75 because it stood still for too "
            "long: one that exits with another error or crashes would fail "
            "again");
    AddFlag(app, "json", json_file_,
            "file to write a summary to, as JSON: exit_code, the process that "
            "failed, the reason, seconds, restarts and the end of each worker");
    AddFlag(app, "server-binary", server_binary_,
            "path of nereus-server; without it, the one beside this program");
  }

  // Writes the programs' lines through PatientOutput and not to `out`: with a
  // reader that stands still, a write to `out` would block, and no signal would
  // end the command.
  absl::StatusOr<int> Execute(std::ostream& /*out*/,
                              std::ostream& plain_err) override {
    options_.spec = job_.spec;
    NEREUS_TRY(options_.Validate());
    if (command_.empty()) {
      return InvalidArgumentError(
          "no program to run: nereusctl run -np 4 -- PROGRAM ARGUMENTS");
    }
    command_[0] = NEREUS_TRY(FindCommand(command_[0]));
    const std::string server = NEREUS_TRY(
        FindProgram(server_binary_, "nereus-server", "../nereus-server"));
    // Checks now, and not after the training, that the file can be written.
    // This removes the summary of an earlier job.
    if (!json_file_.empty() && !std::ofstream(json_file_)) {
      return UnavailableError("cannot write ", json_file_, ": ",
                              strerror(errno));
    }
    PatientOutput out_buffer(STDOUT_FILENO);
    PatientOutput err_buffer(STDERR_FILENO);
    std::ostream out(&out_buffer);
    std::ostream err(&err_buffer);
    PrefixedLines out_lines(&out, isatty(STDOUT_FILENO) != 0);
    PrefixedLines err_lines(&err, isatty(STDERR_FILENO) != 0,
                            options_.log.format);
    ProgramWorkers workers(options_, command_, ChooseThreads(err),
                           OwnVariables(app()), &out_lines, &err_lines);
    const absl::Time started_at = SteadyNow();
    Ending ending = RunJob(server, workers, err);
    if (ending.code == kExitDone && !out_lines.ok()) {
      Fail(UnavailableError("standard output cannot be written: lines are "
                            "lost"),
           ending, err);
    }
    ending.duration = SteadyNow() - started_at;
    if (json_file_.empty()) return ending.code;
    const absl::Status written =
        WriteTextFile(json_file_, Summary(workers, ending));
    if (written.ok()) return ending.code;
    // If a program failed, returns its exit code, which says more than that of
    // this error.
    const int code = Command::Fail(written, plain_err);
    return ending.code == kExitDone ? code : ending.code;
  }

  // Returns the number of threads for each program. Absent: the user has chosen
  // it.
  std::optional<int> ChooseThreads(std::ostream& err) const {
    if (std::getenv("OMP_NUM_THREADS") != nullptr) return std::nullopt;
    const int cores = UsableCores();
    const int threads = ThreadsOfEach(cores, options_.spec.workers);
    Tell(absl::StrCat("OMP_NUM_THREADS=", threads, " for each program: ",
                      options_.spec.workers, " share ", cores,
                      " cores; set the variable to choose another number"),
         err);
    return threads;
  }

  // Writes a line to `err`.
  void Tell(const std::string& line, std::ostream& err) const {
    err << UserLine(options_.log.format, LogLevel::kInfo, {}, line)
        << std::flush;
  }

  // Writes an error to `err`, and sets the code and the reason of the ending.
  // The reason is the last line of the error; the lines before it are details.
  void Fail(const absl::Status& status, Ending& ending,
            std::ostream& err) const {
    ending.code = Command::Fail(status, err);
    const absl::string_view message = status.message();
    ending.reason = std::string(message.substr(message.rfind('\n') + 1));
  }

  // Runs the job, and returns its ending. Writes an error of the job to `err`.
  Ending RunJob(const std::string& server, ProgramWorkers& workers,
                std::ostream& err) const {
    // The display must not redraw its last line in place: a program may have
    // written a line since.
    ProgressDisplay display(&err, /*is_terminal=*/false, options_.log.format);
    LocalJob job(options_, server, &workers, &display);
    const absl::StatusOr<LocalOutcome> outcome = job.Run();
    Ending ending;
    ending.restarts = job.restarts();
    ending.failed = job.failed_process();
    if (!outcome.ok()) {
      Fail(outcome.status(), ending, err);
      // A program can fail with code 0: if it did not leave the job.
      const auto& worker = job.failed_worker();
      if (worker.has_value() && !worker->ok()) ending.code = ShellCode(*worker);
    } else if (outcome->signal != 0) {
      ending.code = ShellCode({0, outcome->signal});
      ending.reason =
          outcome->signal == SIGINT ? "interrupted" : "asked to end";
      Tell(absl::StrCat("nereusctl run: ", ending.reason,
                        ", all processes are stopped"),
           err);
    } else if (outcome->is_not_saved) {
      Fail(DataLossError("the model of the last step was not saved in ",
                         options_.checkpoint_dir, "; the lines above say why"),
           ending, err);
    }
    return ending;
  }

  static std::string Summary(const ProgramWorkers& workers,
                             const Ending& ending) {
    nlohmann::ordered_json ends = nlohmann::ordered_json::array();
    for (const ProgramWorkers::End& end : workers.ends()) {
      const bool has_code = end.exit.has_value() && end.exit->signal == 0;
      const bool has_signal = end.exit.has_value() && end.exit->signal != 0;
      nlohmann::ordered_json json = {
          {"starts", end.starts}, {"exit_code", nullptr}, {"signal", nullptr}};
      if (has_code) json["exit_code"] = end.exit->code;
      if (has_signal) json["signal"] = end.exit->signal;
      ends.push_back(std::move(json));
    }
    nlohmann::ordered_json json = {
        {"exit_code", ending.code},
        {"failed", nullptr},
        {"reason", nullptr},
        {"seconds", absl::ToDoubleSeconds(ending.duration)},
        {"restarts", ending.restarts},
        {"workers", std::move(ends)}};
    if (!ending.failed.empty()) json["failed"] = ending.failed;
    if (!ending.reason.empty()) json["reason"] = ending.reason;
    return FormatJson(json) + "\n";
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
