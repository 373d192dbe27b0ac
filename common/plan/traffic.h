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
// frames, in one step. The prediction is exact: unlike the cost model it uses
// the placement and counts frame headers. Tests compare it with the bytes that
// transports count.
//
// The result has hosts.hosts() values. Frames between members of one host are
// not counted. A frame carries up to `frame_elements_max` values; more values
// travel in several frames, each with a header.
//
// Each layer goes by its route:
//
//   kServer  For a chunk of L elements, each host with workers sends L values
//            to the shard and receives L values from it.
//   kFactor  Each worker sends its K x M and its K x N matrix, in separate
//            frames, once to every other host with workers. The receivers
//            compute the bias from the K x M matrix, so it costs nothing.
//   kRing    Each host with workers has a segment (RingSegments).
//
// The prediction is for rounds that wait for all workers. In partial rounds
// each worker sends its own gradients: pass HostMap::OneEach for them.
//
// For a result beyond int64_t, returns the largest int64_t. REQUIRES:
// `placement` was made for these layers and hosts.shards() shards; one route
// per layer, which the layer supports; hosts.workers() <= kWorkersMax; 0 <=
// frame_header_bytes <= 65536; frame_elements_max >= 1.
std::vector<int64_t> PredictLinkBytes(absl::Span<const LayerSpec> layers,
                                      absl::Span<const Route> routes,
                                      const Placement& placement,
                                      const HostMap& hosts,
                                      int64_t frame_header_bytes,
                                      int64_t frame_elements_max);

// Returns the bytes that each host sends plus receives at the start of a job,
// when the workers get the first parameters. Worker 0 sends every chunk of
// every layer to the chunk's shard. Then each worker, worker 0 too, requests
// each chunk by a frame without payload, and receives it. Values travel as
// fp32, with one exception: with `servers_update` (servers run the optimizer),
// shards send layers of Scheme::kServer in the routes' wire types. The form of
// the result and the requirements are those of PredictLinkBytes.
std::vector<int64_t> PredictInitialBytes(absl::Span<const Route> routes,
                                         const Placement& placement,
                                         const HostMap& hosts,
                                         int64_t frame_header_bytes,
                                         int64_t frame_elements_max,
                                         bool servers_update);

}  // namespace nereus
