#pragma once

#include "absl/time/time.h"
#include "common/metrics/metric_list.h"
#include "common/protocol/job_status.h"

namespace nereus {

// Adds what the coordinator knows about its job. The number of series is
// bounded: at most kStatusLayersMax layers, and at most kLateWorkersMax
// workers, the latest ones. Ranks do not grow without limit, as the ranks of
// members that are gone are given again. `now`: wall-clock time of `status`.
void AddJobMetrics(const JobStatus& status, absl::Time now,
                   MetricList& metrics);

// Largest number of workers for which there is a series.
inline constexpr int kLateWorkersMax = 64;

}  // namespace nereus
