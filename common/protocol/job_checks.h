#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"

namespace nereus {

// Largest number of rows with which a layer may go by factors: frames must be
// able to address every element of the factors of all workers together.
int64_t FactorRowsMax(const LayerSpec& layer, int64_t workers);

// Checks of a job that may have come over the network. Only MakeJob calls these
// functions, in the order below. Each one checks a part of the job, and relies
// on the checks of the functions before it.
//
// Errors of all functions: kInvalidArgument, naming the field and its value.

// Checks the workers of the epoch and the leavers: ranks and first steps ascend
// and are in range, and no worker is in both lists.
absl::Status CheckWorkers(const Job& job);

// Checks the number of shards. MakeJob calls it before it allocates memory for
// each shard.
absl::Status CheckShardCount(int shards);

// Checks the servers of each shard. REQUIRES: CheckShardCount has passed.
absl::Status CheckShardServers(const Job& job, int shards);

// Checks layers, options and routes, and that they fit together. REQUIRES: the
// job does not have its block layer.
absl::Status CheckPlan(const Job& job);

// Checks the steps, rounds, verdicts, finished rounds, donor, and number of
// state arrays. REQUIRES: all other checks have passed, and the block layer of
// a sparse job has been added.
absl::Status CheckProgress(const Job& job);

}  // namespace nereus
