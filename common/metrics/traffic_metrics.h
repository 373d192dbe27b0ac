#pragma once

#include "common/metrics/metric_list.h"
#include "common/protocol/activity.h"
#include "common/transport/transport.h"

namespace nereus {

// Adds the traffic and the connections of a member.
void AddTrafficMetrics(const Activity& activity,
                       const ConnectionCounts& connections,
                       MetricList& metrics);

}  // namespace nereus
