#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/logging.h"
#include "common/protocol/job_spec.h"

namespace nereus {

// The training that all workers of a local job do.
struct TrainingOptions {
  std::string model = "cnn";
  std::string data;      // A folder of images; empty: generated ones.
  double holdout = 0.2;  // Share of the images kept for the test, in [0, 1).
  int64_t batch = 32;    // Images per worker and step.
  int64_t epochs = 8;
  int64_t seed = 1;
  int64_t limit = 0;  // Use only the first so many images; 0 is all.
  int threads = 1;    // Per worker. The workers share this machine's cores.
  std::string device = "cpu";  // Or "cuda:0", which they share.
  // Seconds that workers are late, another one in each step.
  double delay_in_turn = 0;
};

// Returns a job of four workers and two servers.
JobSpec LocalSpec();

// A training job whose processes all run on this machine.
struct LocalOptions {
  JobSpec spec = LocalSpec();
  TrainingOptions training;
  bool shared_memory = true;

  // So many processes that die are started again. Then the coordinator is a
  // process of its own, and keeps its job in a file.
  int restarts = 0;
  std::string checkpoint_dir;  // Empty: there are no checkpoints.
  std::string restore;         // See nereus-server.

  // Lines of the processes below this level are not shown, though the last ones
  // are, once the job has failed.
  LogLevel log_level = LogLevel::kWarning;

  // OK, or kInvalidArgument that names the field and its value. `model` and
  // `data` are checked by the worker alone.
  absl::Status Validate() const;
};

// Processes of each kind that one machine is asked to run.
inline constexpr int kLocalProcessesMax = 64;

// Files of a local job.
struct LocalFiles {
  std::string job;    // Job file (JobText).
  std::string state;  // The coordinator's state.
};

// The arguments, without the program's path, of shard `shard`.
// `coordinator`: "host:port" of the coordinator's control port; empty for shard
// 0 if it coordinates.
std::vector<std::string> ServerArguments(const LocalOptions& options,
                                         const LocalFiles& files, int shard,
                                         absl::string_view coordinator);

// The arguments of a process that only coordinates. `port`: its control port;
// 0: a free one.
std::vector<std::string> CoordinatorArguments(const LocalOptions& options,
                                              const LocalFiles& files,
                                              int port);

// The same for the worker that all call "worker `index`".
std::vector<std::string> WorkerArguments(const LocalOptions& options, int index,
                                         absl::string_view coordinator);

}  // namespace nereus
