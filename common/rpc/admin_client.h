#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "common/protocol/trace.h"

namespace nereus {

// Asks the coordinator at `address` ("host:port" of its control port) for the
// job's status. Blocks for `timeout` at most. Changes nothing, so it may be
// repeated. Errors: kUnavailable, no process answers there, or a process that
// does not speak gRPC; kFailedPrecondition, a server that is not the
// coordinator answers (the message names the coordinator); kUnimplemented,
// another gRPC server answers, for example a worker; kDeadlineExceeded after
// `timeout`; kInvalidArgument, the answer has a wrong field. Messages of failed
// calls have the address.
absl::StatusOr<JobStatus> FetchJobStatus(const std::string& address,
                                         absl::Duration timeout);

// Asks the coordinator at `address` for a checkpoint. OK means that the job
// will make it; FetchJobStatus shows when it is complete. A repeated call can
// lead to a second checkpoint. Errors: as FetchJobStatus; kFailedPrecondition
// also if the job is not running, or has no folder for checkpoints.
absl::Status RequestCheckpoint(const std::string& address,
                               absl::Duration timeout);

// Asks the coordinator at `address` to let the member `member` leave: the name
// of a worker, or "shard 2". Waits until it has left, or the job is over.
// Errors: as FetchJobStatus; kNotFound, the job has no such member;
// kFailedPrecondition also if the member cannot leave; kUnavailable also if the
// member has no session now; kDeadlineExceeded also if it has not left within
// `timeout`.
absl::Status DrainMember(const std::string& address, const std::string& member,
                         absl::Duration timeout);

// Steps that an operator wants to trace.
struct TraceQuestion {
  // First step; -1: the next one that all members can trace whole.
  int64_t first_step = -1;
  int64_t steps = 1;
  int64_t spans_max = 200'000;  // Number of spans that a member keeps at most.
};

// Traces the job of the coordinator at `address`. Blocks until all members have
// sent their spans, for `timeout` at most. `progress` is called when the trace
// begins, and whenever more steps are done: `trace` has no spans yet, and
// `done` is the last round that all workers have done, or kInitialRound.
// Errors: as FetchJobStatus; kFailedPrecondition also if the job does not run,
// has begun the first step already, is being traced, or was over before the
// last step.
absl::StatusOr<JobTrace> FetchTrace(
    const std::string& address, const TraceQuestion& question,
    absl::Duration timeout,
    const std::function<void(const JobTrace& trace, int64_t done)>& progress);

}  // namespace nereus
