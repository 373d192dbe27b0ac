#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

// What the server at `address` ("host:port" of its control port) knows of the
// job. Errors: kUnavailable, nobody answers there (the message has the
// address); kFailedPrecondition, a shard that does not coordinate (the message
// says who does); kDeadlineExceeded after `timeout`.
absl::StatusOr<JobStatus> FetchJobStatus(const std::string& address,
                                         absl::Duration timeout);

// Asks the coordinator there for a checkpoint; FetchJobStatus says when it is
// there. Errors: the same; kFailedPrecondition also where the job does not run,
// or has no folder for checkpoints.
absl::Status RequestCheckpoint(const std::string& address,
                               absl::Duration timeout);

}  // namespace nereus
