#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/host_map.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"

namespace nereus {

// Returns the bytes that each host sends plus receives over its link, in
// frames, in one step. The prediction is exact: it knows the placement, and
// counts frame headers, which the cost model does not. Tests compare it with
// the bytes that transports count.
//
// The result has hosts.hosts() values. Frames between members of one host are
// not counted. More than `frame_elements_max` values travel in as many frames
// as needed, each with its header.
//
// All values travel by their routes. A kServer chunk of L elements: each host
// with workers sends L values to the shard and receives L. A kFactor layer:
// each worker sends its K x M and its K x N matrix, framed separately, once to
// every other host with workers; the bias follows from the first matrix and
// costs nothing. A kRing layer: see RingSegments, with a segment for each host
// with workers. `decoupled`: hosts request the result of each kServer chunk by
// a frame without payload (Overlap::kDecoupled). Rounds of all workers are
// assumed: in partial rounds each worker sends by itself, as on HostMap::
// OneEach.
//
// REQUIRES: `placement` was made for these layers and hosts.shards() shards;
// one route per layer, which the layer supports; hosts.workers() <=
// kWorkersMax; 0 <= frame_header_bytes <= 65536; frame_elements_max >= 1. A
// result beyond int64_t is returned as its largest value.
std::vector<int64_t> PredictLinkBytes(absl::Span<const LayerSpec> layers,
                                      absl::Span<const Route> routes,
                                      const Placement& placement,
                                      const HostMap& hosts,
                                      int64_t frame_header_bytes,
                                      int64_t frame_elements_max,
                                      bool decoupled = false);

// Returns the bytes that each host sends plus receives once, at the start:
// worker 0 sends every chunk of every layer to its shard; then each worker
// requests each chunk, by a frame without payload, and receives it. All values
// travel as fp32, except that shards send the values that they will update
// (`servers_update`: they run the optimizer) by their routes. Hosts and
// REQUIRES as for PredictLinkBytes.
std::vector<int64_t> PredictInitialBytes(absl::Span<const Route> routes,
                                         const Placement& placement,
                                         const HostMap& hosts,
                                         int64_t frame_header_bytes,
                                         int64_t frame_elements_max,
                                         bool servers_update);

}  // namespace nereus
