#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/cost_model.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/route.h"
#include "common/plan/time_model.h"

namespace nereus {

// Predictor of the time of an iteration:
//
//   - A worker's device computes layer by layer. Products of factors occupy the
//     device too.
//   - Each host's link has two sides, out and in. Each side carries one frame
//     at a time: of those that are ready, the one whose layer the next forward
//     pass needs first (Job::SendPriority). Factors go before other frames.
//   - A shard sends the result of a chunk when it has all contributions.
//   - With fusion, workers hold back layers. A transfer then joins the message
//     of an earlier transfer to the same peer if that message has not begun to
//     leave. Among workers, a transfer joins until the message has left.
//   - Members of one host hand each other values through the host's memory,
//     which carries one transfer at a time. Only the memory of host 0 counts,
//     because no host has more members. Workers of one host share products of
//     factors if SharesProduct is true, as workers without GPUs do.
//
// The model follows Zhang et al., "Poseidon", algorithm 2 (wait-free
// backpropagation), and if programs wait in forward passes Zhang et al., "DeAR"
// (BackPipe and FeedPipe). A prediction takes a thousandth of the time of
// SimulateIterations, because it does not cut transfers into frames that take
// turns. It is good enough to compare plans, but not to predict a single layer
// under congestion: it neglects that a server's frames do not wait for those of
// the worker on its host.
//
// Calls do not change a Timeline, so any thread may make them. A call takes
// time in proportion to the number of chunks times the number of hosts, of
// which it plays at most LinkBookings::kHostsPlayed.
class Timeline {
 public:
  // Borrows all arguments; they must outlive this. REQUIRES: all are valid; the
  // placement is that of the layers on cluster.servers shards.
  Timeline(absl::Span<const LayerSpec> layers, const Placement& placement,
           const ClusterShape& cluster, const TimeModel& model)
      : layers_(layers),
        placement_(placement),
        cluster_(cluster),
        model_(model) {}

  // Returns the predicted seconds from the end of one iteration to the end of
  // the next. `routes`: route of each layer. `fusion_bytes`: fusion threshold
  // (fusion.h).
  double Play(absl::Span<const Route> routes, int64_t fusion_bytes) const {
    return PlayLayers(routes, fusion_bytes).seconds;
  }

  // Times of an iteration.
  struct Played {
    double seconds = 0;  // Seconds of the whole iteration.
    // Seconds of the iteration in which the device computes: all layers, and
    // products of factors.
    double compute_seconds = 0;
    // Seconds of each layer from its gradient to its result on all workers.
    std::vector<double> sync_seconds;
  };
  // Returns the times of an iteration. Arguments as for Play.
  Played PlayLayers(absl::Span<const Route> routes, int64_t fusion_bytes) const;

 private:
  const absl::Span<const LayerSpec> layers_;  // Borrowed.
  const Placement& placement_;                // Borrowed.
  const ClusterShape& cluster_;               // Borrowed.
  const TimeModel& model_;                    // Borrowed.
};

}  // namespace nereus
