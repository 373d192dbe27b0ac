#pragma once

#include "common/metrics/metric_list.h"

namespace nereus {

// Adds what every process has: its version, the number of log lines that it has
// dropped, and Prometheus' standard metrics of a process
// (process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds,
// process_start_time_seconds). Leaves out what the system does not tell.
void AddProcessMetrics(MetricList& metrics);

}  // namespace nereus
