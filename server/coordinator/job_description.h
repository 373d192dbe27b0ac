#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_requests.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/epochs.h"
#include "server/coordinator/last_checkpoint.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Parts of a coordinator, to be described.
struct JobView {
  const CoordinatorOptions& options;
  JobState state = JobState::kGathering;
  const std::string& reason;
  const MemberList& roster;
  const Epochs& epochs;
  const CheckpointRequests& checkpoints;
  const LastCheckpoint& last;
};

// What the job waits for, and which members are there; "" if it waits for
// nothing.
std::string DescribeMissing(const JobView& view);

// Line for the log at the end of a job that has done `last_step`, and whose
// newest checkpoint is of `saved_round`.
std::string DescribeEnd(const CoordinatorOptions& options, int64_t last_step,
                        int64_t saved_round);

// Status for `nereusctl status`, without the rate.
JobStatus DescribeJob(const JobView& view, absl::Time now);

}  // namespace nereus
