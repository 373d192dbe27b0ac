#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Limits on a job's members.
inline constexpr int64_t kWorkersMax = 65536;
inline constexpr int64_t kServersMax = 65536;

// How many machines take part. Worker i and server i share a node, so the nodes
// are max(workers, servers).
struct ClusterShape {
  int64_t workers = 1;  // P1 of the paper.
  int64_t servers = 1;  // P2: shards.

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// What one node sends plus receives for one layer in one step, in elements
// (float32 values: times 4 for bytes), headers not counted.
//
// Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for
// Distributed Deep Learning on GPU Clusters", USENIX ATC 2017, table 1. A layer
// has an M x N matrix and K rows on each of P1 workers; P2 servers hold an
// equal part each.
//
// REQUIRES, for all: a valid layer and cluster. Each is exact until one
// division at the end, which rounds down; a figure beyond int64_t is given as
// its largest value.

// Scheme::kServer, a node with a worker and a server, for a layer of `elements`
// elements, which is the table's M N, or the layer's `parameters` if its bias
// counts: 2 M N (P1 + P2 - 2) / P2. Frames between the worker and the server of
// one node cross no network.
int64_t ServerSchemeBothElements(int64_t elements, const ClusterShape& cluster);

// Scheme::kFactor, any node with a worker: 2 K (P1 - 1) (M + N). Each worker
// sends K rows of both factors to every other, and receives theirs.
int64_t FactorSchemeElements(const LayerSpec& layer,
                             const ClusterShape& cluster);

// Scheme::kRing, any node with a worker, of a layer of `elements` elements:
// 4 M N (P1 - 1) / P1. Each worker sends and receives all but its part of the
// layer twice, for reduce-scatter and for all-gather. The usual all-reduce
// (Patarasuk and Yuan, JPDC 2009).
int64_t RingSchemeElements(int64_t elements, const ClusterShape& cluster);

// Poseidon's test, algorithm 1, compared without dividing and so without
// rounding: 2 K (P1 - 1) (M + N) <= 2 M N (P1 + P2 - 2) / P2. A tie is true.
bool FactorsMoveNoMore(const LayerSpec& layer, const ClusterShape& cluster);

}  // namespace nereus
