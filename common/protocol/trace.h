#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"
#include "common/protocol/span.h"

namespace nereus {

// Spans of one member in a trace.
struct MemberTrace {
  PeerId member;
  std::string name;         // Name of the member in messages: "worker 3".
  std::string host;         // Text that is equal for members of one host.
  std::vector<Span> spans;  // In no order.
  int64_t lost = 0;         // Number of spans that the member could not keep.
  // Comparisons of the member's clock with the coordinator's. Empty: the member
  // has not sent its last part. It then has no spans, because their times
  // cannot be converted.
  std::vector<ClockSample> clock;
};

// A trace of a job: the spans of each member in some steps. An operator asks
// the coordinator for it (`nereusctl trace`).
struct JobTrace {
  std::string job_name;
  JobPtr job;              // The job at the begin of the trace.
  int64_t first_step = 0;  // Steps [first_step, last_step] are traced.
  int64_t last_step = 0;
  // Measurements: each figure is that of the slowest worker; absent: not known.
  std::optional<Measured> measured;
  std::vector<MemberTrace> members;  // Workers by rank, then servers.
};

// Converts a time of a member to the coordinator's clock. Between the first and
// the last sample the offset changes evenly; before and after them it is that
// of the nearer one. Without a sample, it is 0.
absl::Time OnCoordinatorClock(absl::Time time,
                              const std::vector<ClockSample>& clock);

}  // namespace nereus
