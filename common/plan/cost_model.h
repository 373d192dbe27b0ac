#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "common/plan/scheme.h"

namespace nereus {

// Limits on the members of a job.
inline constexpr int64_t kWorkersMax = 65536;
inline constexpr int64_t kServersMax = 65536;

// Number of workers and servers. Worker i and server i share a node, so the
// number of nodes is max(workers, servers).
struct ClusterShape {
  int64_t workers = 1;  // P1 of the paper.
  int64_t servers = 1;  // P2 of the paper: the number of shards.

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// Formulas of the elements that one node sends plus receives for one layer in
// one step. An element is a float32 value: multiply by the wire type's bytes.
// Headers are not counted.
//
// Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for
// Distributed Deep Learning on GPU Clusters", USENIX ATC 2017, table 1. A layer
// has an M x N matrix and K rows on each of P1 workers; P2 servers hold an
// equal part each.
//
// REQUIRES, for all: a valid layer and cluster. Each result is exact up to one
// division at the end, which rounds down; a result beyond int64_t is returned
// as its largest value.

// Returns the elements of a node with a worker and a server, for
// Scheme::kServer: 2 M N (P1 + P2 - 2) / P2. `elements` stands for M N; pass
// the layer's `parameters` to count the bias too. Frames between the worker and
// the server of one node cross no network. Example: 4096 x 4096 on 8 workers
// and 8 servers, 58,720,256 elements.
int64_t ServerSchemeBothElements(int64_t elements, const ClusterShape& cluster);

// Returns the elements of any node with a worker, for Scheme::kFactor: 2 K (P1
// - 1) (M + N). Each worker sends K rows of both factors to every other worker,
// and receives theirs. Example: 4096 x 4096, K = 32, on 8 workers, 3,670,016
// elements.
int64_t FactorSchemeElements(const LayerSpec& layer,
                             const ClusterShape& cluster);

// Returns the elements of any node with a worker, for Scheme::kRing: 4 M N (P1
// - 1) / P1. Each worker sends and receives all but its own segment twice, for
// reduce-scatter and for all-gather (Patarasuk and Yuan, JPDC 2009). `elements`
// stands for M N.
int64_t RingSchemeElements(int64_t elements, const ClusterShape& cluster);

// Returns the elements of a node for `scheme`, by the formula above that
// belongs to it, with all the layer's parameters as M N.
int64_t SchemeElements(const LayerSpec& layer, Scheme scheme,
                       const ClusterShape& cluster);

// True if factors move no more elements than servers do: 2 K (P1 - 1) (M + N)
// <= 2 M N (P1 + P2 - 2) / P2. This is the test of Poseidon's algorithm 1
// (BestScheme); a tie is true, as there. Compared without a division, and so
// exactly.
bool FactorsMoveNoMore(const LayerSpec& layer, const ClusterShape& cluster);

}  // namespace nereus
