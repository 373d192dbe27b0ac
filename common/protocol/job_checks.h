#pragma once

#include "common/base/status.h"
#include "common/protocol/job.h"

namespace nereus {

// Checks of a job that may have come over the network; only MakeJob calls them.
// Each function checks one part, and may assume that MakeJob's earlier checks
// have passed.
//
// Errors of all: kInvalidArgument, naming the field and its value.

// Checks the workers of the epoch, and the workers that have left: ranks and
// first steps ascend and are in range, and no worker is in both lists.
absl::Status CheckWorkers(const Job& job);

// Checks the number of shards, before memory is allocated for each shard.
absl::Status CheckShardCount(int shards);

// Checks the servers of each shard. REQUIRES: CheckShardCount.
absl::Status CheckShardServers(const Job& job, int shards);

// Checks layers, options and routes, and that they fit together. REQUIRES: the
// job has no block layer yet.
absl::Status CheckPlan(const Job& job);

// Checks the progress of the job: steps, rounds, verdicts, finished rounds,
// donor, and the number of state arrays. REQUIRES: all other checks have
// passed.
absl::Status CheckProgress(const Job& job);

}  // namespace nereus
