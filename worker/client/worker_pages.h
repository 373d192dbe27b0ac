#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/layer_traffic.h"
#include "common/driver/member_process.h"
#include "common/metrics/metric_list.h"
#include "common/metrics/process_pages.h"
#include "common/plan/route.h"
#include "common/plan/scheme.h"
#include "common/protocol/membership.h"
#include "worker/client/round_table.h"
#include "worker/measure/meter.h"

namespace nereus {

// The pages of a worker at --http-port: /metrics, as of the last heartbeat.
// Thread-safe.
class WorkerPages {
 public:
  // `layers`: number of layers. `add`: see ProcessPages. The others must
  // outlive this.
  WorkerPages(int layers, const Meter& meter, const RoundTable& rounds,
              std::function<void(MetricList&)> add);

  // Listens at `address`, unless its http_port is 0. Errors: those of
  // HttpServer::Start.
  absl::Status Listen(const ProcessAddress& address) {
    return pages_.Listen(address);
  }

  // Notes the routes of the layers in the epoch that begins. The traffic so far
  // belongs to the routes before.
  void OnEpoch(absl::Span<const Route> routes, const LayerTraffic& traffic)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the metrics as of now. `heartbeat`: the one that is about to be sent.
  void OnHeartbeat(const Heartbeat& heartbeat, const MemberProcess& process)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Bytes of one layer, or of all layers of a scheme.
  struct Bytes {
    int64_t sent = 0;
    int64_t received = 0;
  };

  // Adds the traffic since the last call to that of the schemes of routes_.
  void CountTraffic(const LayerTraffic& traffic)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Each adds the metrics that its name says.
  void AddTraffic(MetricList& metrics) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddSteps(const Activity& activity, MetricList& metrics) const;
  void AddSpeeds(MetricList& metrics) const;

  const Meter& meter_;
  const RoundTable& rounds_;

  Mutex mu_;
  std::vector<Route> routes_ ABSL_GUARDED_BY(mu_);  // Empty before an epoch.
  std::vector<Bytes> layers_ ABSL_GUARDED_BY(mu_);  // Counted so far, by layer.
  std::map<Scheme, Bytes> schemes_ ABSL_GUARDED_BY(mu_);

  ProcessPages pages_;
};

}  // namespace nereus
