// nereus-server: one shard of a job's parameter servers; shard 0 also
// coordinates.
//
//   nereus-server --shard=0 --servers=2 --workers=4 --control-port=7000
//   nereus-server --shard=1 --servers=2 --workers=4
//   --coordinator=127.0.0.1:7000

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

void AddServerFlags(CLI::App& app, ServerOptions& options) {
  AddFlag(app, "shard", options.shard, "which shard this is, from 0");
  AddFlag(app, "servers", options.shards, "shards of the job");
  AddFlag(app, "workers", options.workers, "workers of the job");
  AddFlag(app, "min-workers", options.min_workers,
          "the job goes on with so many workers, and waits with fewer");
  AddFlag(app, "max-workers", options.max_workers,
          "so many workers may be there at a time; 0: as many as --workers");
  AddFlag(app, "job", options.job, "name of the job");
  AddFlag(app, "coordinator", options.coordinator_address,
          "HOST:PORT of shard 0's control port; shard 0 itself needs none");
  AddFlag(app, "host", options.host,
          "address to listen at, and that the others are told");
  AddFlag(app, "control-port", options.control_port,
          "port for control calls, health checks and nereusctl; 0: a free one");
  AddFlag(app, "data-port", options.data_port,
          "port for gradients; 0: a free one");
}

int Main(int argc, char** argv) {
  CLI::App app(
      "One shard of a job's parameter servers. Shard 0 also "
      "coordinates the job, and its flags decide for all.");
  ServerOptions options;
  JobFlags job;
  LogLevel log_level = LogLevel::kInfo;
  AddCommonFlags(app, "nereus-server", log_level);
  AddServerFlags(app, options);
  AddJobFlags(app, job);
  double lease_seconds = absl::ToDoubleSeconds(options.lease);
  AddFlag(app, "lease", lease_seconds,
          "seconds of silence after which a member counts as dead");
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;

  SetLogLevel(log_level);
  SetLogName(absl::StrCat("shard ", options.shard));
  options.lease = absl::Seconds(lease_seconds);
  options.forced_scheme = ForcedScheme(job.scheme);
  options.cost = job.cost;
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
  std::printf("listening control=%s data=%s\n",
              JoinHostPort(options.host, (*server)->control_port()).c_str(),
              JoinHostPort(options.host, (*server)->data_port()).c_str());
  std::fflush(stdout);
  const absl::Status outcome = (*server)->AwaitEnd();
  if (outcome.ok()) return 0;
  NEREUS_LOG(Error) << outcome.message();
  return 1;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
