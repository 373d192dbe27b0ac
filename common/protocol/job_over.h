#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/protocol/job.h"

namespace nereus {

// Phase of a job.
enum class JobState {
  // The job has not begun: it waits for members that are missing.
  kWaiting,
  // The job has begun and is not over. It may wait for members meanwhile.
  kRunning,
  // All workers have left, and the last checkpoint is complete or given up.
  kFinished,
  // The job has ended with an error.
  kFailed,
  // All workers have left before the job was done (Leave::early). Another job
  // can go on from its last checkpoint.
  kStopped,
  // The job has failed because values were lost. Another job would not fail so.
  kLost,
};

// Returns the name of a phase in reports: "running".
absl::string_view JobStateName(JobState state);

// True if the job is finished, has failed, or was stopped.
inline bool IsOver(JobState state) {
  return state != JobState::kWaiting && state != JobState::kRunning;
}

// Tells a member that the job is over. Ends the membership and the session.
struct JobOver {
  JobState state = JobState::kFinished;  // A state for which IsOver is true.
  std::string reason;  // Cause, if the job is not finished; else empty.
  // Round of the newest checkpoint; kInitialRound: none exists.
  int64_t saved_round = kInitialRound;
};

// Returns OK for a job that is finished, and else why it is not: kAborted, the
// job has failed; kDataLoss, it was stopped, or its values were lost, so
// another job can go on.
absl::Status OutcomeOf(const JobOver& over);

}  // namespace nereus
