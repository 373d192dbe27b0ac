#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"

namespace nereus {

// Bytes that each node sends plus receives in frames, predicted exactly from
// the placement: unlike the cost model it knows which shard owns which chunk,
// and counts frame headers.
//
// Node i is worker i (if i < workers) and shard i (if i < placement.shards()),
// so the result has max(workers, shards) values. What a worker and the shard of
// its own node send each other is not counted. More than
// `frame_elements_max` values travel in as many frames as needed, each with its
// header.
//
// REQUIRES: `placement` was made for these layers; one route per layer, that
// the layer supports; 1 <= workers <= kWorkersMax; 0 <= frame_header_bytes <=
// 65536; frame_elements_max >= 1. A figure beyond int64_t is given as its
// largest value.

// Per step, values of fp32. A kServer chunk of L elements: each worker sends 4
// L bytes to its shard and receives 4 L. A kFactor layer: each worker sends its
// K x M and its K x N matrix, framed separately, to every other worker; the
// bias needs no bytes of its own. A kRing layer: see RingSegments. `decoupled`:
// workers ask for each kServer chunk's outcome by a frame without payload
// (Overlap::kDecoupled).
std::vector<int64_t> PredictNodeBytes(
    absl::Span<const LayerSpec> layers, absl::Span<const Route> routes,
    const Placement& placement, int64_t workers, int64_t frame_header_bytes,
    int64_t frame_elements_max, bool decoupled = false);

// Once, at the start: worker 0 sends every chunk of every layer to its shard;
// then each worker asks for each chunk, by a frame without payload, and
// receives it. All as fp32, but that shards send what they will update
// (`servers_update`: they run the optimizer) as they always do, by its route.
std::vector<int64_t> PredictInitialBytes(absl::Span<const Route> routes,
                                         const Placement& placement,
                                         int64_t workers,
                                         int64_t frame_header_bytes,
                                         int64_t frame_elements_max,
                                         bool servers_update);

}  // namespace nereus
