#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/plan/cost_model.h"
#include "common/protocol/job_spec.h"

namespace nereus {

// A flag of nereus-worker that `nereusctl local` has too. `nereusctl local`
// checks the value and passes it on to all workers.
struct TrainingFlag {
  // Name without dashes: "batch".
  const char* name;
  // Default. Empty: by default, the worker does not get the flag.
  const char* value;
  // Type of the value in --help: TEXT, INT or FLOAT.
  const char* type;
  // Largest number. Ignored for TEXT.
  double max;
  // Smallest number. Ignored for TEXT.
  double min;
  const char* help;
};

// Returns all training flags, in the order of --help.
absl::Span<const TrainingFlag> TrainingFlags();

// A job with all processes on this computer, whatever program its workers run.
struct LocalJobOptions {
  // Options of the job.
  JobSpec spec;

  // Number of hosts that the processes play: processes that play different
  // hosts behave as if they ran on different computers. 0: each worker plays a
  // host of its own, and server i the host of worker i, as on a cluster
  // (ClusterShape).
  int hosts = 0;

  // True if processes that play one host exchange frames through shared memory.
  bool shared_memory = true;

  // Folder of the devices that the workers share with other jobs: worker i
  // takes turns at the device of its subfolder i. Empty: they share none.
  std::string share;
  // Share of the job in these devices.
  double share_weight = 1;

  // Number of restarts of processes that died, all processes together. Above 0,
  // the coordinator is a process of its own and keeps its state in a file.
  int restarts = 0;

  // Folder for checkpoints. Empty: there are no checkpoints.
  std::string checkpoint_dir;
  // Checkpoint to begin from: ServerOptions::restore.
  std::string restore;

  // Port of the coordinator's page and metrics; 0: none.
  int http_port = 0;

  // Lowest level of the log lines of Nereus's own programs that are shown while
  // the job runs, and the format of all log lines. After a failure, the last
  // lines are shown, whatever their level.
  LogFlags log = {LogLevel::kWarning};

  // Returns OK, or kInvalidArgument with the flag and its value.
  absl::Status Validate() const;

  // Returns the cluster that the processes play.
  ClusterShape cluster() const { return {spec.workers, spec.shards, hosts}; }
};

// A training job of `nereusctl local`: its workers run nereus-worker. Validate
// does not check the training flags: parsing does that.
struct LocalOptions : LocalJobOptions {
  // Sets the numbers of workers and servers to those of a small cluster.
  LocalOptions() {
    spec.workers = 4;
    spec.shards = 2;
  }

  // Values of the training flags, by name.
  std::map<std::string, std::string> training = DefaultTraining();

  // Images of each worker in a step: the training flag --batch.
  int64_t batch() const;

  static std::map<std::string, std::string> DefaultTraining();
};

// Add all flags of LocalOptions, and only those of LocalJobOptions. `options`
// has the defaults. Parsing writes the options of the job to job.spec, and all
// other values to `options`. After parsing, the caller copies job.spec to
// options.spec. `options` and `job` must live as long as `app`.
void AddLocalFlags(CLI::App& app, LocalOptions& options, JobFlags& job);
void AddLocalJobFlags(CLI::App& app, LocalJobOptions& options, JobFlags& job);

// Returns kInvalidArgument, with the flag, if a flag of LocalJobOptions on the
// command line has no effect beside the other flags. `argc` and `argv` are the
// command line that `app` has parsed.
absl::Status RefuseIdleLocalFlags(const CLI::App& app, int argc, char** argv,
                                  const LocalJobOptions& options,
                                  const JobFlags& job);

// Writes the first line of the log of `nereusctl local` or `run`, if
// --log-level shows lines of level info. `app`, `argc`, `argv`: as above.
void BeginLocalLog(const CLI::App& app, int argc, char** argv,
                   const LocalJobOptions& options, const JobFlags& job);

// Largest number of workers, and of servers, of a local job.
inline constexpr int kLocalProcessesMax = 64;

// Paths of the files of a local job.
struct LocalFiles {
  // Job file (JobText).
  std::string job;
  // State file of the coordinator, if it may be started again.
  std::string state;
  // File of the coordinator's last status (nereus-server --last-status).
  std::string last_status;
};

// Makes a temporary folder, and in it the job file of `spec`. Errors:
// kUnavailable, there is no place for it; those of WriteTextFile.
absl::StatusOr<LocalFiles> MakeLocalFiles(const JobSpec& spec);

// Returns the arguments of nereus-server for shard `shard`, without the path of
// the program. `coordinator` is HOST:PORT of the coordinator's control port;
// empty for shard 0 if it coordinates.
std::vector<std::string> ServerArguments(const LocalJobOptions& options,
                                         const LocalFiles& files, int shard,
                                         absl::string_view coordinator);

// Returns the arguments of nereus-server for a process that only coordinates.
// `port` is its control port; "0": a free one.
std::vector<std::string> CoordinatorArguments(const LocalJobOptions& options,
                                              const LocalFiles& files,
                                              absl::string_view port);

// Returns the end of the line that says how to look at the job: the address of
// its page. "": the job has none.
std::string PageText(const LocalJobOptions& options);

// Returns the name of the host that worker `index` plays: the value of --node.
std::string NodeOfWorker(const LocalJobOptions& options, int index);

// Makes the folder of --share, with mode 0700, if it is missing. Errors:
// kInvalidArgument, it cannot be made.
absl::Status MakeShareFolder(const std::string& folder);

// Returns the folder of the device of worker `index`; empty: it shares none.
std::string ShareFolderOf(const LocalJobOptions& options, int index);

// Returns the arguments of nereus-worker for "worker `index`".
std::vector<std::string> WorkerArguments(const LocalOptions& options, int index,
                                         absl::string_view coordinator);

}  // namespace nereus
