#pragma once

#include "common/metrics/metric_list.h"
#include "common/protocol/membership.h"

namespace nereus {

// Adds what a member of a job does, by its last heartbeat: times of a worker's
// steps, traffic, and what a server stores.
void AddMemberMetrics(Role role, const Heartbeat& heartbeat,
                      MetricList& metrics);

}  // namespace nereus
