#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/job_status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/epochs.h"
#include "server/coordinator/last_checkpoint.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Parts of a coordinator that the functions below describe. The references must
// be valid during the call.
struct JobView {
  const CoordinatorOptions& options;
  JobState state = JobState::kWaiting;
  const std::string& reason;
  const MemberList& roster;
  const Epochs& epochs;
  const CheckpointLedger& checkpoints;
  const LastCheckpoint& last;
};

// Returns the line for the log at the end of a job that is finished or was
// stopped, as `state` says. `last_step`: last step of the job. `saved_round`:
// round of its newest checkpoint.
std::string DescribeEnd(const CoordinatorOptions& options, JobState state,
                        int64_t last_step, int64_t saved_round);

// Returns how many layers travel by each scheme: "3 by server, 1 by ring".
std::string DescribePlan(const Job& job);

// Returns what the job waits for, and which members are here; "" if the job
// does not wait.
std::string DescribeMissing(const JobView& view);

// Tells each member of `roster` that waits what the job waits for, unless it
// has been told within CoordinatorOptions::waiting_notice_interval. `roster`:
// the one in `view`.
void TellWaiting(const JobView& view, MemberList& roster, absl::Time now,
                 CoordinatorOutbox& out);

// Returns the status for operators, without what Tally counts and times.
JobStatus DescribeJob(const JobView& view, absl::Time now);

}  // namespace nereus
