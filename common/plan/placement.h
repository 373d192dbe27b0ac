#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Contiguous range of one layer's elements: the unit of placement and
// aggregation. It is what Zhang et al., "Poseidon", call a pair of the
// key-value store, and has the size of the paper (2 MB).
struct Chunk {
  int32_t layer = 0;   // Index of the layer.
  int32_t index = 0;   // Index within the layer, from 0.
  int64_t offset = 0;  // First element, counted from the layer's start.
  int64_t length = 0;  // Number of elements, 1 to kChunkElementsMax.
  int32_t shard = 0;   // Shard that the chunk belongs to.

  bool operator==(const Chunk&) const = default;
};

// Length of a full chunk, in bytes of float32 and in elements. Smaller chunks
// would cost more messages; with larger chunks the loads of shards would differ
// more.
inline constexpr int64_t kChunkBytesMax = int64_t{2} << 20;
inline constexpr int64_t kChunkElementsMax =
    kChunkBytesMax / static_cast<int64_t>(sizeof(float));

// Assignment of the chunks of a model to shards. Each layer is cut into
// ceil(bytes / 2 MiB) chunks: all are full, except that the last may be
// shorter. Each chunk goes to the shard that has the fewest elements so far.
//
// The loads of two shards differ by at most one chunk (2 MiB). The chunks of
// layers without factors are placed first, so the loads from these chunks alone
// also differ by at most one chunk. The shards are then evenly loaded even if a
// plan sends all layers with factors by factors. The placement does not depend
// on routes, so a new plan moves no chunk. Equal arguments give equal
// placements in every process: each member computes the placement, and no
// member sends it.
//
// Immutable, so any thread may use it. Bounded by kModelParametersMax and
// kServersMax.
class Placement {
 public:
  // Makes an empty placement, without layers and shards.
  Placement() = default;

  // Places `layers` on `shards` shards. Errors: kInvalidArgument, bad layers,
  // or `shards` is not from 1 to kServersMax.
  static absl::StatusOr<Placement> Make(absl::Span<const LayerSpec> layers,
                                        int shards);

  // Returns all chunks, by layer, then index.
  absl::Span<const Chunk> chunks() const { return chunks_; }

  // Returns the chunks of one layer, by index. REQUIRES: 0 <= layer < layers().
  absl::Span<const Chunk> layer_chunks(int layer) const;

  // Returns the number of elements of a shard. REQUIRES: 0 <= shard < shards().
  int64_t shard_elements(int shard) const;

  // Number of layers. REQUIRES: Make made this placement.
  int layers() const { return static_cast<int>(layer_begin_.size()) - 1; }
  // Number of shards.
  int shards() const { return static_cast<int>(shard_elements_.size()); }

 private:
  std::vector<Chunk> chunks_;  // All chunks, by layer, then index.
  // Index in chunks_ of each layer's first chunk, and at last chunks_.size().
  std::vector<size_t> layer_begin_;
  std::vector<int64_t> shard_elements_;  // Number of elements of each shard.
};

}  // namespace nereus
