#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// What a process that asks to join is compared with.
struct JobToJoin {
  const CoordinatorOptions& options;
  JobState state = JobState::kGathering;
  const std::string& reason;  // Why the job failed, if it did.
  const Job* job = nullptr;   // Null before the job runs.
  const MemberList& roster;
};

// OK if the process may join. Each error names what differs with both values.
// Errors: kInvalidArgument, a value that no job has; kFailedPrecondition, a
// value that this job does not have; kNotFound, another job; kAborted and
// kOutOfRange, the job has failed or is finished; kResourceExhausted, no place
// is left; kAlreadyExists, another member has the place, and may be dead.
absl::Status CheckJoin(const JoinRequest& request, const JobToJoin& job);

}  // namespace nereus
