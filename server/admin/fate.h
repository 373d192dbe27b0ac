#pragma once

#include <optional>

#include "absl/time/time.h"
#include "server/admin/local_process.h"

namespace nereus {

// Fate of a process of a local job.
enum class Fate {
  kNothing,   // Runs on, has done its part, or is dealt with already.
  kRestart,   // Must be started again.
  kGivenUp,   // Is left out: the job goes on, or was finished, without it.
  kFailsJob,  // Makes the job fail.
};

// State of a job, as far as the fates of its processes depend on it.
struct JobSituation {
  // True if the exits of workers decide (LocalWorkers::exit_decides).
  bool exit_decides = false;
  // Number of restarts that the user allows, and of those that are left.
  int restarts = 0;
  int restarts_left = 0;
  bool backup = false;   // True if each shard has a copy (--backup).
  int min_workers = 1;   // Smallest number of workers that train.
  bool listens = false;  // True once the coordinator has said its address.
  bool trains = false;   // True once the job runs, or a worker has progressed.
  // True if the separate coordinator of a job with restarts has exited with an
  // error. A coordinator that a signal ended does not count.
  bool coordinator_failed = false;
  // Time at which the coordinator ended because all workers had left. Absent:
  // the job is not finished.
  std::optional<absl::Time> finished_at;
  int running_workers = 0;  // Number of workers that have not ended.
};

// Returns the fate of a process at `now`. While restarts are left, a process
// that failed is started again, but for three kinds: one that made a mistake
// (LocalProcess::mistake), a worker whose own exit decides (IsVerdict), and any
// process of a job that is finished or has no coordinator. Without restarts,
// the job goes on without a worker that was killed while enough others train,
// if exits do not decide. It goes on without a server that was killed, if
// another one has a copy of its shard.
Fate FateOf(const LocalProcess& process, const JobSituation& job,
            absl::Time now);

// True if a process has failed: it has made a mistake, has ended with an error,
// or has ended before it was done. A process that was replaced or given up
// counts no more.
bool HasFailed(const LocalProcess& process, const JobSituation& job);

// True for a worker that must not be started again: exits decide, no kill from
// outside ended it, and its code is not kExitAgain, so its program would end in
// the same way again. REQUIRES: it has ended.
bool IsVerdict(const LocalProcess& process, const JobSituation& job);

}  // namespace nereus
