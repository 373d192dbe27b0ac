#include "server/admin/fate.h"

#include "common/base/exit_codes.h"

namespace nereus {
namespace {

// Time for a worker to evaluate its model after the job has finished.
constexpr absl::Duration kWorkerEndTimeout = absl::Minutes(10);

// True for a worker of the reference trainer that has left the job early, as
// an operator has asked for.
bool IsDrained(const LocalProcess& process) {
  return !process.is_done && process.exit.has_value() && process.exit->ok() &&
         process.seen == LocalProcess::Seen::kLeftEarly;
}

// True if a restart of this process can help the job.
bool MayRestart(const LocalProcess& process, const JobSituation& job) {
  return process.mistake.empty() && !IsVerdict(process, job) &&
         job.restarts_left > 0 && (job.listens || process.was_killed()) &&
         !job.coordinator_failed && !job.finished_at.has_value();
}

bool IsGivenUpServer(const LocalProcess& process, const JobSituation& job) {
  return job.backup && process.was_killed() && !process.coordinates &&
         job.trains && !job.finished_at.has_value() &&
         !MayRestart(process, job);
}

bool IsGivenUpWorker(const LocalProcess& process, const JobSituation& job,
                     absl::Time now) {
  const bool is_finished = job.finished_at.has_value();
  const bool has_failed = HasFailed(process, job);
  // A program that was started again as the job ended comes too late.
  if (job.exit_decides) {
    return process.is_late || (process.is_restart && is_finished && has_failed);
  }
  // Once the job is finished, a failed worker has no coordinator to come back
  // to, and a worker that stands still might never end.
  if (is_finished) {
    return has_failed || (!process.exit.has_value() &&
                          now - *job.finished_at > kWorkerEndTimeout);
  }
  if (IsDrained(process)) return true;
  // Before any worker has trained, the job waits for all workers, and would
  // wait for ever for a worker that is given up.
  return job.restarts == 0 && process.was_killed() && job.trains &&
         job.running_workers >= job.min_workers;
}

}  // namespace

bool HasFailed(const LocalProcess& process, const JobSituation& job) {
  if (process.is_replaced || process.is_given_up) return false;
  if (!process.mistake.empty()) return true;
  if (!process.exit.has_value() || IsDrained(process)) return false;
  if ((process.is_server || process.is_done) && job.finished_at.has_value()) {
    return false;
  }
  const bool is_early = process.is_server ? !job.listens : !process.is_done;
  return !process.exit->ok() || is_early;
}

bool IsVerdict(const LocalProcess& process, const JobSituation& job) {
  return !process.is_server && job.exit_decides &&
         !process.was_killed_from_outside() && process.exit->code != kExitAgain;
}

Fate FateOf(const LocalProcess& process, const JobSituation& job,
            absl::Time now) {
  if (process.is_replaced || process.is_given_up) return Fate::kNothing;
  if (!process.is_done && process.mistake.empty() &&
      (process.is_server ? IsGivenUpServer(process, job)
                         : IsGivenUpWorker(process, job, now))) {
    return Fate::kGivenUp;
  }
  if (!HasFailed(process, job)) return Fate::kNothing;
  return MayRestart(process, job) ? Fate::kRestart : Fate::kFailsJob;
}

}  // namespace nereus
