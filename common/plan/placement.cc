#include "common/plan/placement.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/plan/cost_model.h"
#include "common/plan/scheme.h"

namespace nereus {
namespace {

// Number of chunks that each shard should have at least, and number that all
// shards together should have at most. The second number counts if both cannot
// be met.
constexpr int64_t kChunksOfAShard = 32;
constexpr int64_t kChunksMax = 4096;

// Appends the chunks of a layer, without their shards. `full`: elements of a
// full chunk.
void CutLayer(int32_t layer, int64_t elements, int64_t full,
              std::vector<Chunk>& chunks) {
  int32_t index = 0;
  for (int64_t offset = 0; offset < elements; offset += full) {
    const int64_t length = std::min(full, elements - offset);
    chunks.push_back({layer, index++, offset, length, /*shard=*/0});
  }
}

// Returns indices into `chunks` in the order of placement. Chunks of layers
// without factors come first. Among these, and among the others, larger chunks
// come first, because that leaves the loads most even. Chunks of equal length
// keep their order in `chunks`. The order does not depend on the rows, which a
// job may learn later: the chunks stay where they are.
std::vector<size_t> PlacementOrder(absl::Span<const LayerSpec> layers,
                                   absl::Span<const Chunk> chunks) {
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const bool has_factors = layers[chunks[i].layer].has_factors;
    return std::make_tuple(has_factors, -chunks[i].length, i);
  };
  absl::c_sort(order, [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

}  // namespace

int64_t FittingChunkBytes(absl::Span<const LayerSpec> layers, int shards) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : layers) {
    bytes += layer.parameters * static_cast<int64_t>(sizeof(float));
  }
  const int64_t fits = std::max(bytes / (kChunksOfAShard * shards),
                                (bytes + kChunksMax - 1) / kChunksMax);
  return std::clamp(fits / kChunkBytesMin * kChunkBytesMin, kChunkBytesMin,
                    kChunkBytesMax);
}

absl::StatusOr<Placement> Placement::Make(absl::Span<const LayerSpec> layers,
                                          int shards, int64_t chunk_bytes) {
  NEREUS_TRY(ValidateLayers(layers));
  if (shards < 1 || shards > kServersMax) {
    return InvalidArgumentError("shards is ", shards, ", not from 1 to ",
                                kServersMax);
  }
  if (chunk_bytes != kChunkAuto &&
      (chunk_bytes < kChunkBytesMin || chunk_bytes > kChunkBytesMax)) {
    return InvalidArgumentError("chunk_bytes is ", chunk_bytes, ", not from ",
                                kChunkBytesMin, " to ", kChunkBytesMax);
  }
  if (chunk_bytes == kChunkAuto) {
    chunk_bytes = FittingChunkBytes(layers, shards);
  }
  const int64_t full = chunk_bytes / static_cast<int64_t>(sizeof(float));
  Placement placement;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    placement.layer_begin_.push_back(placement.chunks_.size());
    CutLayer(static_cast<int32_t>(layer), layers[layer].parameters, full,
             placement.chunks_);
  }
  placement.layer_begin_.push_back(placement.chunks_.size());

  // Load of each shard: elements, shard. The shard with the fewest elements is
  // on top; of equal ones, the lowest shard, so that all members compute the
  // same placement.
  using Load = std::pair<int64_t, int32_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<Load>> loads;
  for (int shard = 0; shard < shards; ++shard) loads.push({0, shard});
  placement.shard_elements_.assign(shards, 0);
  for (const size_t i : PlacementOrder(layers, placement.chunks_)) {
    const auto [elements, shard] = loads.top();
    loads.pop();
    Chunk& chunk = placement.chunks_[i];
    chunk.shard = shard;
    placement.shard_elements_[shard] = elements + chunk.length;
    loads.push({elements + chunk.length, shard});
  }
  return placement;
}

absl::Span<const Chunk> Placement::layer_chunks(int layer) const {
  NEREUS_CHECK(layer >= 0 && layer < layers())
      << "layer " << layer << " of " << layers();
  return chunks().subspan(layer_begin_[layer],
                          layer_begin_[layer + 1] - layer_begin_[layer]);
}

int64_t Placement::shard_elements(int shard) const {
  NEREUS_CHECK(shard >= 0 && shard < shards())
      << "shard " << shard << " of " << shards();
  return shard_elements_[shard];
}

}  // namespace nereus
