// nereus-server: one shard of a job's parameter servers, the job's coordinator,
// or both. Shard 0 coordinates unless it has --coordinator.
//
//   nereus-server --shard=0 --servers=2 --workers=4 --control-port=7000
//   nereus-server --shard=1 --coordinator=127.0.0.1:7000
//   nereus-server --coordinate-only --servers=2 --workers=4 --control-port=7000

#include <malloc.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/descriptor_limit.h"
#include "common/base/exit_codes.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/signal_exit.h"
#include "common/base/version.h"
#include "common/flags/flags.h"
#include "common/flags/given_options.h"
#include "common/flags/model_file.h"
#include "server/process/disk_thread.h"
#include "server/process/server.h"
#include "server/report/status_report.h"

namespace nereus {

// Calls a function when the process gets SIGTERM, on a thread of its own. A
// second SIGTERM ends the process at once, with exit code 143.
//
// The signal must be blocked in all threads that exist while this does: so make
// the first TerminateWatch before the process has other threads.
class TerminateWatch {
 public:
  // Blocks SIGTERM, and begins to wait for it.
  TerminateWatch();
  // After this, SIGTERM ends the process at once.
  ~TerminateWatch();
  TerminateWatch(const TerminateWatch&) = delete;
  TerminateWatch& operator=(const TerminateWatch&) = delete;

  // Sets the function. Without a function, the first SIGTERM ends the process.
  void Set(std::function<void()> on_terminate);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // Shared with the thread.
};

namespace {

// Lets all threads share two arenas of malloc. One thread allocates a payload
// and another frees it, and each arena keeps freed memory. With an arena for
// each thread, the process would grow for thousands of rounds
// (docs/benchmarks.md, memory).
void ShareArenas() { mallopt(M_ARENA_MAX, 2); }

void AddServerFlags(CLI::App& app, ServerOptions& options) {
  AddFlag(app, "shard", options.shard, "which shard this is, from 0");
  AddSwitch(app, "coordinate-only", options.coordinate_only,
            "be the job's coordinator and no shard; shards then need "
            "--coordinator, shard 0 too");
  AddFlag(app, "coordinator", options.coordinator_address,
          "HOST:PORT of the coordinator's control port; without it, shard 0 "
          "is the coordinator");
  AddAddressFlags(
      app, options.address, options.connect_timeout,
      "port for control calls, health checks and nereusctl; 0: a free one",
      "port for gradients; 0: a free one",
      "port for metrics (/metrics) and, at the coordinator, a page about the "
      "job; 0: none");
  AddSharedMemoryFlag(app, options.shared_memory);
  AddNodeFlag(app, options.node);
}

// Adds flags that only a process that coordinates may have.
void AddCoordinatorFlags(CLI::App& app, ServerOptions& options,
                         std::string& last_status) {
  AddFlag(app, "restore", options.restore,
          "checkpoint to go on from: its round, or latest (which begins a new "
          "job if there is no checkpoint)");
  AddFlag(app, "state", options.state_file,
          "SQLite file from which a coordinator that is started again goes "
          "on; without it, the job ends with its coordinator");
  AddSwitch(app, "once", options.once,
            "end if the job in --state is over; without it, a new job begins");
  AddFlag(app, "last-status", last_status,
          "file to write the job's status to when this process ends, as JSON: "
          "what `nereusctl status --json` prints");
}

// Flags of fields of ServerOptions. Has only the fields whose flag has another
// name.
const std::map<std::string, std::string> kFlagsOfFields = {
    {"coordinator_address", "--coordinator"},
    {"stall_threshold", "--stall-after"},
    {"state_file", "--state"},
};

// Checks each flag, and checks that no flags contradict each other.
// `coordinators_flags` are the flags that only a process that coordinates may
// have.
absl::Status CheckFlags(const CLI::App& app, int argc, char** argv,
                        const ServerOptions& options, const JobFlags& job,
                        const std::vector<std::string>& coordinators_flags) {
  absl::Status status;
  if (!options.coordinator_address.empty()) {
    status.Update(RefuseFlags(app, argc, argv, coordinators_flags,
                              "with --coordinator: that process decides it"));
  }
  if (options.coordinate_only) {
    status.Update(
        RefuseFlags(app, argc, argv,
                    {"--shard", "--data-port", "--shared-memory", "--node",
                     "--stall-after"},
                    "with --coordinate-only: the process is not a shard"));
  }
  if (options.checkpoint_dir.empty()) {
    status.Update(RefuseFlags(app, argc, argv, {"--checkpoints-kept"},
                              "without --checkpoint-dir"));
  }
  if (options.state_file.empty()) {
    status.Update(RefuseFlags(app, argc, argv, {"--once"}, "without --state"));
  }
  if (options.coordinator_address.empty()) {
    status.Update(
        RefuseIdleJobFlags(app, argc, argv, job.spec, job.file_options));
  }
  status.Update(options.Validate());
  return status;
}

// Prints the line `listening`, for which programs that start a server wait.
void PrintAddresses(const ServerOptions& options, const Server& server) {
  const std::string data =
      options.coordinate_only
          ? "none"
          : JoinHostPort(options.address.host, server.data_port());
  const int http_port = options.address.http_port;
  const std::string http =
      http_port == 0 ? ""
                     : absl::StrCat(" http=", JoinHostPort(options.address.host,
                                                           http_port));
  const int written = std::printf(
      "listening control=%s data=%s%s\n",
      JoinHostPort(options.address.host, server.control_port()).c_str(),
      data.c_str(), http.c_str());
  if (written >= 0 && std::fflush(stdout) == 0) return;
  NEREUS_LOG(Warning) << "standard output cannot be written: a program that "
                         "waits there for the line `listening` waits for ever";
}

// Exit code of the program, and the last line of its log.
struct Ending {
  int code = kExitDone;
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

Ending FailureOf(const absl::Status& outcome) {
  return {ExitCodeOf(outcome), LogLevel::kError,
          std::string(outcome.message())};
}

// Writes the job's status to `file`, if it is not "" and this process is the
// coordinator.
void WriteLastStatus(const std::string& file, const Server& server) {
  if (file.empty()) return;
  const std::optional<JobStatus> status = server.Status();
  if (!status.has_value()) return;
  const absl::Status written = WriteTextFile(file, StatusJson(*status));
  if (!written.ok()) NEREUS_LOG(Warning) << written.message();
}

// Waits until the job is over, or this process has left it.
Ending AwaitEnd(const ServerOptions& options, const std::string& last_status,
                Server& server, TerminateWatch& watch) {
  std::atomic<bool> is_terminated = false;
  watch.Set([&] {
    is_terminated = true;
    server.Leave();
  });
  PrintAddresses(options, server);
  const absl::Status outcome = server.AwaitEnd();
  watch.Set(nullptr);
  WriteLastStatus(last_status, server);
  if (server.has_left_early()) {
    return {is_terminated ? kExitTerminated : kExitDone, LogLevel::kInfo,
            absl::StrCat("left the job early, ",
                         is_terminated ? "because of SIGTERM"
                                       : "as an operator has asked for")};
  }
  if (absl::IsOutOfRange(outcome)) {
    return {kExitDone, LogLevel::kInfo,
            absl::StrCat(outcome.message(), ": nothing is left to do")};
  }
  if (!outcome.ok()) return FailureOf(outcome);
  if (server.lacks_last_checkpoint()) {
    return {kExitNotSaved, LogLevel::kError,
            "the job is finished, but the model of its last step is not saved; "
            "the lines above say why"};
  }
  return {kExitDone, LogLevel::kInfo, "the job is finished"};
}

// Starts the server and waits for its end. The server is gone when this
// returns: its last line would otherwise come before those of its threads.
Ending Serve(const ServerOptions& options, const std::string& last_status) {
  TerminateWatch watch;
  const auto server = Server::Start(options);
  if (server.ok()) return AwaitEnd(options, last_status, **server, watch);
  Ending ending = FailureOf(server.status());
  // A damaged checkpoint or state would be damaged at the next start, too.
  if (absl::IsDataLoss(server.status())) ending.code = kExitJobFailed;
  return ending;
}

int Main(int argc, char** argv) {
  ShareArenas();
  CLI::App app(
      "One shard of a job's parameter servers, or the job's coordinator, or "
      "both. The coordinator's flags decide for all.",
      "nereus-server");
  app.footer(kExitCodesHelp);
  ServerOptions options;
  std::string last_status;
  JobFlags job;
  LogFlags log;
  AddCommonFlags(app, "nereus-server", log);
  AddServerFlags(app, options);
  std::vector<std::string> coordinators_flags = FlagsAddedBy(app, [&] {
    AddCoordinatorFlags(app, options, last_status);
    AddJobFlags(app, job);
  });
  std::erase(coordinators_flags, "--job-name");  // Shards have it too.
  double stall_seconds = absl::ToDoubleSeconds(options.stall_threshold);
  AddFlag(app, "stall-after", stall_seconds,
          "seconds that a round may wait before the log names the round and "
          "the members that it waits for");
  AddFlag(app, "checkpoint-dir", options.checkpoint_dir,
          "a folder for checkpoints, shared by all servers");
  const auto begin_log = [&] {
    log.Apply();
    ChangeLogContext([&](LogContext& context) {
      const bool is_shard = !options.coordinate_only;
      context = {job.spec.name, is_shard ? "server" : "coordinator",
                 is_shard ? options.shard : -1, ProcessName()};
    });
    NEREUS_LOG(Info, {LogEvent::kStart})
        << DescribeStart(app, argc, argv, &job);
  };
  if (const int code = ParseFlags(app, argc, argv, begin_log); code >= 0) {
    return code;
  }
  options.stall_threshold = absl::Seconds(stall_seconds);
  options.spec = job.spec;
  const absl::Status status =
      CheckFlags(app, argc, argv, options, job, coordinators_flags);
  if (!status.ok()) {
    return RefuseCommandLine(
        app, WithFlagNames(app, status.message(), kFlagsOfFields));
  }
  RaiseDescriptorLimit();
  signal(SIGPIPE, SIG_IGN);
  ExitOnSignals();  // Until Serve has its own answer to SIGTERM.
  const Ending ending = Serve(options, last_status);
  WriteLog(ending.level, {LogEvent::kEnd}, ending.text);
  if (IsDiskThreadLeftBehind()) {
    FlushLog(kLogFlushLimit);
    std::_Exit(ending.code);
  }
  return ending.code;
}

}  // namespace

struct TerminateWatch::State {
  Mutex mu;
  std::function<void()> on_terminate ABSL_GUARDED_BY(mu);
};

TerminateWatch::TerminateWatch() : state_(std::make_shared<State>()) {
  PrepareExitAtOnce();
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([state = state_, signals] {
    int received = 0;
    bool was_called = false;
    while (sigwait(&signals, &received) == 0) {
      MutexLock lock(&state->mu);
      const auto call = std::exchange(state->on_terminate, nullptr);
      if (call != nullptr) {
        was_called = true;
        call();
      } else {
        ExitAtOnce(kExitTerminated, was_called
                                        ? "a second SIGTERM: ends at once"
                                        : "SIGTERM: ends at once");
      }
    }
  }).detach();
}

TerminateWatch::~TerminateWatch() { Set(nullptr); }

void TerminateWatch::Set(std::function<void()> on_terminate) {
  MutexLock lock(&state_->mu);
  state_->on_terminate = std::move(on_terminate);
}

}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
