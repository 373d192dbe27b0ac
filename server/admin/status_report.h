#pragma once

#include <string>

#include "common/protocol/membership.h"

namespace nereus {

// Returns the status of a job as text: the job, then a line for each member,
// then workers that were made hosts of their own, stalls, shards on another
// server or without a current backup, and checkpoints.
std::string StatusTable(const JobStatus& status);

// Returns the status as JSON, with a final newline:
//   {"job", "epoch", "state", "reason", "step", "steps_per_second", "plan",
//    "waiting", "workers_expected", "shards_expected",
//    "workers": [{"rank", "name", "address", "host": or null,
//                 "split", "seconds_since_heartbeat", "left", "round",
//                 "stall": or null}],
//    "shards": [{"index", "name", "address", "host": or null,
//                "split", "seconds_since_heartbeat", "left", "bytes",
//                "chunks", "stall": or null}],
//    "shard_servers": [{"primary", "backup": or null, "backup_is_current"}],
//    "checkpoint": {"round", "contributions", "bytes"} or null,
//    "checkpoint_failure"}
// "split" is true for a process that was made a host of its own. A stall is
// {"layer", "round", "missing", "seconds"}.
std::string StatusJson(const JobStatus& status);

}  // namespace nereus
