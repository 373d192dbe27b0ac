#pragma once

#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "proto/admin.pb.h"

namespace nereus {

// Convert a job's status for nereusctl. Errors of FromProto: kInvalidArgument,
// with the field and its value.
v1::GetStatusResponse ToProto(const JobStatus& status);
absl::StatusOr<JobStatus> FromProto(const v1::GetStatusResponse& message);

}  // namespace nereus
