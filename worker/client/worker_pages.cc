#include "worker/client/worker_pages.h"

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/metrics/traffic_metrics.h"

namespace nereus {

WorkerPages::WorkerPages(int layers, const Meter& meter,
                         const RoundTable& rounds,
                         std::function<void(MetricList&)> add)
    : meter_(meter),
      rounds_(rounds),
      layers_(layers),
      pages_({}, std::move(add)) {
  for (const Scheme scheme : kSchemes) schemes_[scheme];
}

void WorkerPages::OnEpoch(absl::Span<const Route> routes,
                          const LayerTraffic& traffic) {
  MutexLock lock(&mu_);
  CountTraffic(traffic);
  routes_.assign(routes.begin(), routes.end());
}

void WorkerPages::OnHeartbeat(const Heartbeat& heartbeat,
                              const MemberProcess& process) {
  MetricList metrics;
  AddSteps(heartbeat.activity, metrics);
  AddSpeeds(metrics);
  AddTrafficMetrics(heartbeat.activity, process.transport().connections(),
                    metrics);
  {
    MutexLock lock(&mu_);
    CountTraffic(process.driver().traffic());
    AddTraffic(metrics);
  }
  pages_.Set(std::move(metrics));
}

// A sparse job has one route more than the model has layers, that of its block
// layer, which LayerTraffic does not count.
void WorkerPages::CountTraffic(const LayerTraffic& traffic) {
  for (size_t i = 0; i < layers_.size() && i < routes_.size(); ++i) {
    const int layer = static_cast<int>(i);
    const Bytes now = {traffic.bytes_sent(layer),
                       traffic.bytes_received(layer)};
    const Bytes before = std::exchange(layers_[i], now);
    Bytes& scheme = schemes_[routes_[i].scheme];
    scheme.sent += now.sent - before.sent;
    scheme.received += now.received - before.received;
  }
}

void WorkerPages::AddTraffic(MetricList& metrics) const {
  for (const auto& [scheme, bytes] : schemes_) {
    const auto add = [&, name = std::string(SchemeName(scheme))](
                         const std::string& direction, int64_t count) {
      metrics.AddCounter("nereus_worker_bytes_total",
                         "Bytes of frames of the model's layers, by the scheme "
                         "that the layer had",
                         static_cast<double>(count),
                         {{"scheme", name}, {"direction", direction}});
    };
    add("sent", bytes.sent);
    add("received", bytes.received);
  }
}

void WorkerPages::AddSteps(const Activity& activity,
                           MetricList& metrics) const {
  const RoundTable::Counts counts = rounds_.counts();
  metrics.AddCounter("nereus_worker_steps_total", "Steps begun",
                     static_cast<double>(activity.steps));
  metrics.AddCounter("nereus_worker_steps_skipped_total",
                     "Steps that the job has skipped",
                     static_cast<double>(counts.skipped_steps));
  metrics.AddCounter("nereus_gradients_not_finite_total",
                     "Pushes of this worker with a NaN or an infinity",
                     static_cast<double>(counts.unfit_gradients));
  metrics.AddHistogram("nereus_worker_step_seconds",
                       "Times from the begin of a step to that of the next "
                       "one",
                       meter_.step_times());
  const auto add_phase = [&](const std::string& phase, absl::Duration time) {
    metrics.AddCounter("nereus_worker_phase_seconds_total",
                       "Time of the steps: before the first push (forward), to "
                       "the last push (backward), in calls that wait "
                       "(exposed_wait), while another job had the shared "
                       "device (turn), and the rest (other)",
                       absl::ToDoubleSeconds(time), {{"phase", phase}});
  };
  add_phase("forward", activity.times.forward);
  add_phase("backward", activity.times.backward);
  add_phase("exposed_wait", activity.times.waiting);
  add_phase("turn", activity.times.turn);
  add_phase("other", activity.times.other);
}

void WorkerPages::AddSpeeds(MetricList& metrics) const {
  const std::optional<Measurements> measured = meter_.last();
  if (!measured.has_value()) return;
  if (measured->link.has_value()) {
    metrics.AddGauge("nereus_link_bandwidth_bytes_per_second",
                     "Bandwidth of the host's link, each way, as the worker "
                     "that measures it told the planner",
                     measured->link->rate);
    metrics.AddGauge("nereus_link_latency_seconds",
                     "Latency of the host's link, as measured",
                     absl::ToDoubleSeconds(measured->link->latency));
  }
  if (measured->memory_rate.has_value()) {
    metrics.AddGauge("nereus_memory_bandwidth_bytes_per_second",
                     "Bandwidth between the workers of the host through "
                     "memory, as the worker that measures it told the planner",
                     *measured->memory_rate);
  }
}

}  // namespace nereus
