#pragma once

#include <string>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Facts about the job that a process asks to join.
struct JobToJoin {
  const CoordinatorOptions& options;
  JobState state = JobState::kWaiting;
  const std::string& reason;  // Reason why the job failed, or "".
  const Job* job = nullptr;   // Null before the job runs.
  const MemberList& roster;   // Members that have places already.
};

// Place where a job's optimizer runs.
struct DecidedPlace {
  OptimizerPlace place = OptimizerPlace::kServer;
  // Decider of the place, for messages: "the job", if its flags decide, or the
  // name of a worker. "" if the place is not decided yet: then `place` is the
  // default, which a worker that joins before the job runs may still change.
  std::string by;
};

// Returns the place that the job's flags or a worker in `roster` have decided,
// before the job runs.
DecidedPlace DecidePlace(const JobSpec& spec, const MemberList& roster);

// Checks whether a process may join. Each error names the difference with both
// values.
//
// Errors: kInvalidArgument, a value out of range; kFailedPrecondition, a value
// that differs from the job's; kNotFound, another job; kAborted, the job has
// failed; kOutOfRange, the job is finished, or a worker asks when all workers
// have left; kResourceExhausted, no place or rank is left; kAlreadyExists,
// another member has the place, but may be dead (the caller makes this a claim,
// see Outsiders).
absl::Status CheckJoin(const JoinRequest& request, const JobToJoin& job);

// Checks that a process which joins with the incarnation of a member is that
// member's process: that it has the same job, role, name and address. Errors:
// kAlreadyExists, it is another one.
absl::Status CheckSameProcess(const JoinRequest& member,
                              const JoinRequest& request);

// Checks whether a process may gather before it joins. Errors: those of
// CheckJoin that do not depend on a place or on the model; kFailedPrecondition,
// another number of processes than the job has workers; kInvalidArgument, the
// number of the process is out of range, or the value is too long.
absl::Status CheckLobby(const LobbyGather& gather, const JobToJoin& job);

// Returns OK if the job is not over. Errors: as for CheckJoin.
absl::Status CheckNotOver(const JobToJoin& job);

}  // namespace nereus
