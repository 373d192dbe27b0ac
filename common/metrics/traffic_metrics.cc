#include "common/metrics/traffic_metrics.h"

#include <cstdint>
#include <string>

namespace nereus {

void AddTrafficMetrics(const Activity& activity,
                       const ConnectionCounts& connections,
                       MetricList& metrics) {
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
  const auto add_open = [&](const std::string& transport, int count) {
    metrics.AddGauge("nereus_connections", "Open connections to other members",
                     count, {{"transport", transport}});
  };
  add_open("socket", connections.sockets);
  add_open("memory", connections.memories);
  const auto add_refused = [&](const std::string& reason, int64_t count) {
    metrics.AddCounter("nereus_connections_refused_total",
                       "Connections that were refused in the handshake "
                       "(stranger), or ended because of a frame that the "
                       "member may not send (frame)",
                       static_cast<double>(count), {{"reason", reason}});
  };
  add_refused("stranger", connections.refused_strangers);
  add_refused("frame", connections.refused_peers);
}

}  // namespace nereus
