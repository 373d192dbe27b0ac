#include "common/metrics/member_metrics.h"

#include <string>

#include "absl/time/time.h"

namespace nereus {
namespace {

void AddWorkerMetrics(const Heartbeat& heartbeat, MetricList& metrics) {
  const Activity& activity = heartbeat.activity;
  metrics.AddCounter("nereus_worker_steps_total", "Steps begun",
                     static_cast<double>(activity.steps));
  const auto add_phase = [&](const std::string& phase, absl::Duration time) {
    metrics.AddCounter("nereus_worker_phase_seconds_total",
                       "Time of the steps: before the first push (forward), to "
                       "the last push (backward), in calls that wait "
                       "(exposed_wait), and the rest (other)",
                       absl::ToDoubleSeconds(time), {{"phase", phase}});
  };
  add_phase("forward", activity.times.forward);
  add_phase("backward", activity.times.backward);
  add_phase("exposed_wait", activity.times.waiting);
  add_phase("other", activity.times.other);
}

void AddServerMetrics(const Heartbeat& heartbeat, MetricList& metrics) {
  metrics.AddGauge("nereus_shard_bytes",
                   "Bytes of parameters and optimizer state",
                   static_cast<double>(heartbeat.stored_bytes));
  metrics.AddGauge("nereus_shard_chunks", "Chunks that this server serves",
                   static_cast<double>(heartbeat.chunks));
}

}  // namespace

void AddMemberMetrics(Role role, const Heartbeat& heartbeat,
                      MetricList& metrics) {
  if (role == Role::kWorker) {
    AddWorkerMetrics(heartbeat, metrics);
  } else {
    AddServerMetrics(heartbeat, metrics);
  }
  const Activity& activity = heartbeat.activity;
  const auto add_traffic = [&](const std::string& direction, int64_t bytes) {
    metrics.AddCounter("nereus_data_bytes_total",
                       "Bytes of frames exchanged with other members",
                       static_cast<double>(bytes), {{"direction", direction}});
  };
  add_traffic("sent", activity.bytes_sent);
  add_traffic("received", activity.bytes_received);
  metrics.AddGauge("nereus_link_busy_ratio",
                   "Share of the last second in which the network slowed the "
                   "busiest connection",
                   activity.busiest.has_value() ? activity.busiest->share : 0);
}

}  // namespace nereus
