#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Contiguous range of one layer's elements: the unit of placement and
// aggregation. It is what Zhang et al., "Poseidon", call a pair of the
// key-value store; those of the paper have 2 MB.
struct Chunk {
  int32_t layer = 0;   // Index of the layer.
  int32_t index = 0;   // Index within the layer, from 0.
  int64_t offset = 0;  // First element, counted from the layer's start.
  int64_t length = 0;  // Number of elements, 1 to Placement's full chunk.
  int32_t shard = 0;   // Shard that the chunk belongs to.

  bool operator==(const Chunk&) const = default;
};

// Smallest and largest length of a full chunk, in bytes of float32: a frame,
// and the chunk of Poseidon.
inline constexpr int64_t kChunkBytesMin = int64_t{256} << 10;
inline constexpr int64_t kChunkBytesMax = int64_t{2} << 20;
inline constexpr int64_t kChunkElementsMax =
    kChunkBytesMax / static_cast<int64_t>(sizeof(float));

// Length of a full chunk that stands for FittingChunkBytes.
inline constexpr int64_t kChunkAuto = 0;

// Returns the length of a full chunk that fits a model on `shards` shards: a
// 32nd of a shard's load, in whole frames, within the limits above. A chunk's
// result leaves only when all contributions to it have come, and loads of
// shards differ by a chunk: so small chunks leave early and spread evenly. Each
// chunk also costs its members memory and time, so a model has at most about
// 4,096 of them, unless they are the largest ones.
int64_t FittingChunkBytes(absl::Span<const LayerSpec> layers, int shards);

// Assignment of the chunks of a model to shards. Each layer is cut into as few
// chunks as possible: all are full, except that the last may be shorter. Each
// chunk goes to the shard that has the fewest elements so far.
//
// The loads of two shards differ by at most one chunk. The chunks of
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

  // Places `layers` on `shards` shards. `chunk_bytes`: length of a full chunk,
  // from kChunkBytesMin to kChunkBytesMax, or kChunkAuto. Errors:
  // kInvalidArgument, bad layers, or another number is out of range.
  static absl::StatusOr<Placement> Make(absl::Span<const LayerSpec> layers,
                                        int shards,
                                        int64_t chunk_bytes = kChunkAuto);

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
