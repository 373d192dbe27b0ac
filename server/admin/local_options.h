#ifndef NEREUS_SERVER_ADMIN_LOCAL_OPTIONS_H_
#define NEREUS_SERVER_ADMIN_LOCAL_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/logging.h"
#include "common/compute/optimizer.h"
#include "common/plan/planner.h"
#include "common/plan/scheme.h"
#include "common/protocol/job.h"

namespace nereus {

// A training job whose processes all run on this machine.
struct LocalOptions {
  int workers = 4;
  int servers = 2;

  std::string model = "cnn";
  std::string data;      // A folder of images; empty: generated ones.
  double holdout = 0.2;  // Share of the images kept for the test, in [0, 1).
  int64_t batch = 32;    // Images per worker and step.
  int64_t epochs = 8;
  int64_t seed = 1;
  int64_t limit = 0;  // Use only the first so many images; 0 is all.
  int threads = 1;    // Per worker. The workers share this machine's cores.
  std::string device = "cpu";  // Or "cuda:0", which they share.

  bool shared_memory = true;
  PlanRules rules;
  JobOptions job = {.optimizer = kReferenceOptimizer};

  // Seconds that workers are late, another one in each step.
  double delay_in_turn = 0;

  // So many processes that die are started again. Then the coordinator is a
  // process of its own, and keeps its job in a file.
  int restarts = 0;
  double lease_seconds = 10;
  std::string checkpoint_dir;  // Empty: there are no checkpoints.
  int checkpoints_kept = 3;
  std::string restore;  // See nereus-server.

  // Lines of the processes below this level are not shown, though the last ones
  // are, once the job has failed.
  LogLevel log_level = LogLevel::kWarning;

  // OK, or kInvalidArgument that names the field and its value. `model` and
  // `data` are checked by the worker alone.
  absl::Status Validate() const;
};

// Processes of each kind that one machine is asked to run.
inline constexpr int kLocalProcessesMax = 64;

// The arguments, without the program's path, of shard `shard`.
// `coordinator`: "host:port" of the coordinator's control port; empty for shard
// 0 if it coordinates.
std::vector<std::string> ServerArguments(const LocalOptions& options, int shard,
                                         absl::string_view coordinator);

// The same for a process that only coordinates, with its job in the file
// `state`. `port`: 0, a free one.
std::vector<std::string> CoordinatorArguments(const LocalOptions& options,
                                              const std::string& state,
                                              int port);

// The same for the worker that all call "worker `index`".
std::vector<std::string> WorkerArguments(const LocalOptions& options, int index,
                                         absl::string_view coordinator);

}  // namespace nereus

#endif  // NEREUS_SERVER_ADMIN_LOCAL_OPTIONS_H_
