#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/plan/compute_times.h"
#include "common/plan/cost_model.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/route.h"

namespace nereus {

// Of a node's link: bytes a second, each way; what each frame takes; and what
// it costs its sender and its receiver beside its bytes.
struct LinkSpeed {
  double rate = 0;
  absl::Duration latency = absl::ZeroDuration();
  absl::Duration message_time = absl::ZeroDuration();

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;

  bool operator==(const LinkSpeed&) const = default;
};

// What a job's iterations take time for, as measured or assumed.
struct TimeModel {
  std::vector<LayerTime> times;  // By layer, of one worker.
  LinkSpeed link;                // Of each node.

  // Rounds are gathered during the next forward (Overlap::kDecoupled).
  bool decoupled = false;
  // How much of a layer's gradient travels (1 - JobOptions::sparsity).
  double share = 1;

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate(absl::Span<const LayerSpec> layers) const;
};

// Plays one iteration: a worker's device computes layer by layer, and each
// node's link has two queues, out and in, that carry one thing at a time in the
// order in which it is there to be sent. A round's second half begins when its
// first is over, chunk by chunk; factors are multiplied on the device.
//
// With fusion, layers are held back as workers do it, and what is sent while
// something waits for the same peer shares its message.
//
// A thousandth of what SimulateIterations costs, since nothing is cut into
// frames that would take turns: good enough to compare plans by.
class Timeline {
 public:
  // Borrows everything. REQUIRES: all valid; the placement is that of the
  // layers on cluster.servers shards.
  Timeline(absl::Span<const LayerSpec> layers, const Placement& placement,
           const ClusterShape& cluster, const TimeModel& model)
      : layers_(layers),
        placement_(placement),
        cluster_(cluster),
        model_(model) {}

  // Seconds from the end of one iteration to that of the next. `routes`: by
  // layer. `fusion_bytes`: fusion.h.
  double Play(absl::Span<const Route> routes, int64_t fusion_bytes) const {
    return PlayLayers(routes, fusion_bytes).seconds;
  }

  // The same; of that, what the device computes: all layers, and products of
  // factors; and for each layer the seconds from its gradient to what its round
  // came to.
  struct Played {
    double seconds = 0;
    double compute_seconds = 0;
    std::vector<double> sync_seconds;
  };
  Played PlayLayers(absl::Span<const Route> routes, int64_t fusion_bytes) const;

 private:
  const absl::Span<const LayerSpec> layers_;
  const Placement& placement_;
  const ClusterShape& cluster_;
  const TimeModel& model_;
};

}  // namespace nereus
