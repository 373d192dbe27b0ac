#pragma once

#include <string>

#include "common/protocol/job_status.h"

namespace nereus {

// Returns the status of a job as text, for `nereusctl status` and `nereusctl
// top`: the summary, the job, the workers with the latest first, the servers,
// what is wrong, the largest layers, checkpoints, and the last events.
std::string StatusTable(const JobStatus& status);

// Returns the status as JSON, with a final newline:
//   {"health": "starting", "good", "at risk", "slow", "bad" or "over",
//    "summary",
//    "job", "epoch", "state", "reason", "step", "steps_per_second",
//    "seconds_since_step": or null, "plan", "waiting",
//    "step_seconds": {"measured", "waiting", "predicted"}, each or null,
//    "workers_expected", "shards_expected",
//    "workers": [{"rank", "name", "address", "host": or null,
//                 "split", "seconds_since_heartbeat", "left",
//                 "late": {"seconds", "cause": or null, "seconds_total"},
//                 "link_busy": or null,
//                 "busiest_link": or null {"peer", "busy",
//                                          "others_busy": or null},
//                 "work": or null, "stall": or null, "round",
//                 "step_seconds": {"forward", "backward", "other", "waiting"}
//                 or null}],
//    "shards": [{"index", "name", "address", "host": or null,
//                "split", "seconds_since_heartbeat", "left", "late",
//                "link_busy", "busiest_link", "work", "stall": or null,
//                "bytes", "chunks"}],
//    "shard_servers": [{"primary", "backup": or null, "backup_is_current"}],
//    "layers": [{"name", "scheme", "wire", "parameters", "bytes",
//                "sync_seconds": or null, "reason"}],
//    "layers_left_out",
//    "checkpoint": {"round", "contributions", "bytes",
//                   "seconds_since": or null} or null,
//    "checkpoint_failure", "checkpoint_damage",
//    "counts": {"epochs", "epochs_by_reason": {...}, "plan_changes",
//               "workers_lost", "servers_lost",
//               "workers_replaced": {"count", "seconds_sum"},
//               "servers_replaced", "checkpoints", "checkpoints_failed"},
//    "events": [{"time", "warning", "event", "member": or null, "text"}]}
// "split" is true for a process that was made a host of its own. "late" is by
// how much of each step the others wait for the member, and "cause" is
// "computing" or "link"; "seconds_total" is the sum over all steps. A stall is
// {"layer", "round", "missing", "seconds"}. Long work is {"kind": "restore", in
// bytes, or "multiply", in rows, "done", "total"}. Times are in UTC, as in RFC
// 3339.
std::string StatusJson(const JobStatus& status);

}  // namespace nereus
