#pragma once

#include <string>

#include "common/protocol/membership.h"

namespace nereus {

// A job's status for people: the job in one line, then a line for each member.
std::string StatusTable(const JobStatus& status);

// The same for machines: {"job", "epoch", "state", "reason", "waiting",
// "workers":
// [{"rank", "name", "address", "round", "seconds_since_heartbeat", "left"}],
// "shards":
// [{"index", ..., "bytes", "chunks"}], "workers_expected", "shards_expected"}.
std::string StatusJson(const JobStatus& status);

}  // namespace nereus
