#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// A contiguous range of one layer's flat elements: the unit of placement,
// transfer and aggregation. Poseidon's key-value pair, of the paper's size.
struct Chunk {
  int32_t layer = 0;
  int32_t index = 0;   // Within the layer, from 0.
  int64_t offset = 0;  // Of the first element, within the layer.
  int64_t length = 0;  // Elements, 1 to kChunkElementsMax.
  int32_t shard = 0;   // The server that owns it.

  bool operator==(const Chunk&) const = default;
};

inline constexpr int64_t kChunkBytesMax = int64_t{2} << 20;
inline constexpr int64_t kChunkElementsMax =
    kChunkBytesMax / static_cast<int64_t>(sizeof(float));

// Which shard owns which chunk of a model. Each layer is cut into full chunks
// and one rest, ceil(bytes / 2 MiB) in all, and each chunk goes to the shard
// that has least.
//
// The loads of two shards differ by at most one chunk (2 MiB). So do they over
// the layers without factors alone, which are placed first: the servers' load
// is even when the plan sends some layers around them. No route matters here,
// so a new plan moves no parameters. Equal arguments give equal placements on
// every machine. Immutable.
class Placement {
 public:
  // Of nothing.
  Placement() = default;

  // Errors: kInvalidArgument, bad layers, or `shards` not from 1 to
  // kServersMax.
  static absl::StatusOr<Placement> Make(absl::Span<const LayerSpec> layers,
                                        int shards);

  // All chunks, by layer, then index.
  absl::Span<const Chunk> chunks() const { return chunks_; }

  // One layer's, by index. REQUIRES: 0 <= layer < layers().
  absl::Span<const Chunk> layer_chunks(int layer) const;

  // Elements that a shard owns. REQUIRES: 0 <= shard < shards().
  int64_t shard_elements(int shard) const;

  int layers() const { return static_cast<int>(layer_begin_.size()) - 1; }
  int shards() const { return static_cast<int>(shard_elements_.size()); }

 private:
  std::vector<Chunk> chunks_;
  std::vector<size_t> layer_begin_;  // Into chunks_; one more than layers.
  std::vector<int64_t> shard_elements_;
};

}  // namespace nereus
