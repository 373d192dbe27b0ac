// nereus-server: one shard of a job's parameter servers; shard 0 also
// coordinates.
//
//   nereus-server --shard=0 --servers=2 --workers=4 --control-port=7000
//   nereus-server --shard=1 --servers=2 --workers=4
//   --coordinator=127.0.0.1:7000
//   nereus-server --coordinate-only --servers=2 --workers=4 --control-port=7000

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "common/flags/flags.h"
#include "server/server.h"

namespace nereus {
namespace {

// A server holds nothing that outlives it, so a signal may end it anywhere: its
// connections close, and the others hear of it by that.
void ExitOnSignal(int signal_number) { _exit(128 + signal_number); }

// A payload's memory is taken by one thread and given back by another. With an
// arena for each, the process grows for thousands of rounds until all of them
// have kept some (docs/benchmarks.md, memory).
void ShareArenas() { mallopt(M_ARENA_MAX, 2); }

void AddServerFlags(CLI::App& app, ServerOptions& options) {
  AddFlag(app, "shard", options.shard, "which shard this is, from 0");
  AddSwitch(app, "coordinate-only", options.coordinate_only,
            "be the job's coordinator and no shard; shards then need "
            "--coordinator, shard 0 too");
  AddFlag(app, "servers", options.shards, "shards of the job");
  AddFlag(app, "workers", options.workers, "workers of the job");
  AddFlag(app, "min-workers", options.min_workers,
          "the job goes on with so many workers, and waits with fewer");
  AddFlag(app, "max-workers", options.max_workers,
          "so many workers may be there at a time; 0: as many as --workers");
  AddFlag(app, "job", options.job, "name of the job");
  AddFlag(app, "coordinator", options.coordinator_address,
          "HOST:PORT of the coordinator's control port; shard 0 without it "
          "coordinates");
  AddFlag(app, "host", options.host,
          "address to listen at, and that the others are told");
  AddFlag(app, "control-port", options.control_port,
          "port for control calls, health checks and nereusctl; 0: a free one");
  AddFlag(app, "data-port", options.data_port,
          "port for gradients; 0: a free one");
  AddTransportFlags(app, options.transport, options.shared_memory);
}

void AddDiskFlags(CLI::App& app, ServerOptions& options, JobFlags& job) {
  AddFlag(app, "checkpoint-dir", options.checkpoint_dir,
          "a folder for checkpoints, shared by all servers");
  AddFlag(app, "checkpoint-every", job.options.checkpoint_every,
          "make a checkpoint every so many steps; 0: when asked to");
  AddFlag(app, "checkpoints-kept", options.checkpoints_kept,
          "so many checkpoints are kept, the newest");
  AddFlag(app, "restore", options.restore,
          "go on from a checkpoint: latest (or begin anew where there is "
          "none), or its round");
  AddFlag(app, "state", options.state_file,
          "a SQLite file in which a coordinator that is started again finds "
          "its job");
}

int Main(int argc, char** argv) {
  ShareArenas();
  CLI::App app(
      "One shard of a job's parameter servers, or the job's coordinator, or "
      "both. The coordinator's flags decide for all.");
  ServerOptions options;
  JobFlags job;
  LogLevel log_level = LogLevel::kInfo;
  AddCommonFlags(app, "nereus-server", log_level);
  AddServerFlags(app, options);
  AddJobFlags(app, job);
  double lease_seconds = absl::ToDoubleSeconds(options.lease);
  AddFlag(app, "lease", lease_seconds,
          "seconds of silence after which a member counts as dead");
  double stall_seconds = absl::ToDoubleSeconds(options.stall_threshold);
  AddFlag(app, "stall-after", stall_seconds,
          "seconds after which it is said for whom a round waits");
  AddDiskFlags(app, options, job);
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;

  SetLogLevel(log_level);
  SetLogName(options.coordinate_only ? "coordinator"
                                     : absl::StrCat("shard ", options.shard));
  options.lease = absl::Seconds(lease_seconds);
  options.stall_threshold = absl::Seconds(stall_seconds);
  options.rules = job.rules;
  options.job_options = job.options;
  if (const absl::Status status = options.Validate(); !status.ok()) {
    std::fprintf(stderr, "nereus-server: %s\n",
                 std::string(status.message()).c_str());
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGINT, ExitOnSignal);
  signal(SIGTERM, ExitOnSignal);
  const auto server = Server::Start(options);
  if (!server.ok()) {
    NEREUS_LOG(Error) << server.status().message();
    return 1;
  }
  const std::string data =
      options.coordinate_only
          ? "none"
          : JoinHostPort(options.host, (*server)->data_port());
  std::printf("listening control=%s data=%s\n",
              JoinHostPort(options.host, (*server)->control_port()).c_str(),
              data.c_str());
  std::fflush(stdout);
  const absl::Status outcome = (*server)->AwaitEnd();
  if (outcome.ok()) return 0;
  NEREUS_LOG(Error) << outcome.message();
  return 1;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
