// nereus-server: one shard of a job's parameter servers, the job's coordinator,
// or both. Shard 0 coordinates unless it has --coordinator.
//
//   nereus-server --shard=0 --servers=2 --workers=4 --control-port=7000
//   nereus-server --shard=1 --coordinator=127.0.0.1:7000
//   nereus-server --coordinate-only --servers=2 --workers=4 --control-port=7000

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/descriptor_limit.h"
#include "common/base/exit_codes.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "common/flags/flags.h"
#include "server/process/server.h"
#include "server/process/terminate_watch.h"

namespace nereus {
namespace {

// Ends the process at once (SIGINT), which is safe at any moment: checkpoints
// and the state file are written whole or not at all, and peers notice that
// their connections close. After SIGTERM the server first leaves the job.
void ExitOnSignal(int signal_number) { _exit(128 + signal_number); }

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
      "port for gradients; 0: a free one");
  AddSharedMemoryFlag(app, options.shared_memory);
  AddNodeFlag(app, options.node);
}

// Adds flags that only a process that coordinates may have.
void AddCoordinatorFlags(CLI::App& app, ServerOptions& options) {
  AddFlag(app, "restore", options.restore,
          "checkpoint to go on from: its round, or latest (which begins a new "
          "job if there is no checkpoint)");
  AddFlag(app, "state", options.state_file,
          "SQLite file from which a coordinator that is started again goes "
          "on; without it, the job ends with its coordinator");
  AddSwitch(app, "once", options.once,
            "end if the job in --state is over; without it, a new job begins");
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
  status.Update(
      RefuseIdleJobFlags(app, argc, argv, job.spec, job.file_options));
  status.Update(options.Validate());
  return status;
}

// Prints the line `listening`, for which programs that start a server wait.
void PrintAddresses(const ServerOptions& options, const Server& server) {
  const std::string data =
      options.coordinate_only
          ? "none"
          : JoinHostPort(options.address.host, server.data_port());
  const int written = std::printf(
      "listening control=%s data=%s\n",
      JoinHostPort(options.address.host, server.control_port()).c_str(),
      data.c_str());
  if (written >= 0 && std::fflush(stdout) == 0) return;
  NEREUS_LOG(Warning) << "standard output cannot be written: a program that "
                         "waits there for the line `listening` waits for ever";
}

// Waits until the job is over, or this process has left it. Returns the exit
// code.
int AwaitEnd(const ServerOptions& options, Server& server,
             TerminateWatch& watch) {
  std::atomic<bool> is_terminated = false;
  watch.Set([&] {
    is_terminated = true;
    server.Leave();
  });
  PrintAddresses(options, server);
  const absl::Status outcome = server.AwaitEnd();
  watch.Set(nullptr);
  if (server.has_left_early()) {
    NEREUS_LOG(Info) << "left the job early, "
                     << (is_terminated ? "because of SIGTERM"
                                       : "as an operator has asked for");
    return is_terminated ? kExitTerminated : kExitDone;
  }
  if (outcome.ok()) {
    return server.lacks_last_checkpoint() ? kExitNotSaved : kExitDone;
  }
  if (absl::IsOutOfRange(outcome)) {
    NEREUS_LOG(Info) << outcome.message() << ": nothing is left to do";
    return kExitDone;
  }
  NEREUS_LOG(Error) << outcome.message();
  return ExitCodeOf(outcome);
}

int Main(int argc, char** argv) {
  ShareArenas();
  CLI::App app(
      "One shard of a job's parameter servers, or the job's coordinator, or "
      "both. The coordinator's flags decide for all.",
      "nereus-server");
  app.footer(kExitCodesHelp);
  ServerOptions options;
  JobFlags job;
  LogLevel log_level = LogLevel::kInfo;
  AddCommonFlags(app, "nereus-server", log_level);
  AddServerFlags(app, options);
  std::vector<std::string> coordinators_flags = FlagsAddedBy(app, [&] {
    AddCoordinatorFlags(app, options);
    AddJobFlags(app, job);
  });
  std::erase(coordinators_flags, "--job-name");  // Shards have it too.
  double stall_seconds = absl::ToDoubleSeconds(options.stall_threshold);
  AddFlag(app, "stall-after", stall_seconds,
          "seconds that a round may wait before the log names the round and "
          "the members that it waits for");
  AddFlag(app, "checkpoint-dir", options.checkpoint_dir,
          "a folder for checkpoints, shared by all servers");
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;

  SetLogLevel(log_level);
  SetLogName(options.coordinate_only ? "coordinator"
                                     : absl::StrCat("shard ", options.shard));
  options.stall_threshold = absl::Seconds(stall_seconds);
  options.spec = job.spec;
  const absl::Status status =
      CheckFlags(app, argc, argv, options, job, coordinators_flags);
  if (!status.ok()) {
    std::fprintf(stderr, "nereus-server: %s\nRun with --help for the flags.\n",
                 WithFlagNames(app, status.message(), kFlagsOfFields).c_str());
    return kExitUsage;
  }
  RaiseDescriptorLimit();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGINT, ExitOnSignal);
  TerminateWatch watch;
  const auto server = Server::Start(options);
  if (!server.ok()) {
    NEREUS_LOG(Error) << server.status().message();
    // A damaged checkpoint or state would be damaged at the next start, too.
    return absl::IsDataLoss(server.status()) ? kExitJobFailed
                                             : ExitCodeOf(server.status());
  }
  return AwaitEnd(options, **server, watch);
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
