#include "common/plan/traffic.h"

#include <algorithm>

#include "common/base/logging.h"
#include "common/plan/cost_model.h"
#include "common/plan/ring_segments.h"
#include "common/plan/scheme.h"
#include "common/plan/wide_integer.h"

namespace nereus {
namespace {

// Longest header that callers may ask about.
constexpr int64_t kFrameHeaderBytesMax = 65536;

// Rule by which a payload becomes frames.
struct Framing {
  int64_t header_bytes = 0;  // Length of a frame's header.
  int64_t elements_max = 1;  // Number of values in a full frame.

  // Returns the length of all frames that carry `elements` values.
  WideInteger Bytes(WideInteger elements, WireType wire) const {
    const WideInteger frames = (elements + elements_max - 1) / elements_max;
    return elements * WireBytes(wire) + frames * header_bytes;
  }
};

// Sum of the traffic of each node, which knows that worker i and shard i share
// a node. Traffic that is equal for all workers is added up once and spread in
// Totals: with 65,536 workers a table of pairs would not fit.
class NodeBytes {
 public:
  NodeBytes(int64_t workers, int shards)
      : workers_(workers),
        by_shard_(shards, 0),
        nodes_(std::max<int64_t>(workers, shards), 0) {}

  // Adds `bytes` between each worker and `shard`.
  void AddAllWorkersWithShard(int32_t shard, WideInteger bytes) {
    by_shard_[shard] += bytes;
  }

  // Adds `bytes` between worker 0 and `shard`.
  void AddFirstWorkerWithShard(int32_t shard, WideInteger bytes) {
    if (shard == 0) return;
    nodes_[0] += bytes;
    nodes_[shard] += bytes;
  }

  // Adds `bytes` between this worker and other workers, for this worker only.
  void AddForWorker(int64_t worker, WideInteger bytes) {
    nodes_[worker] += bytes;
  }

  // Adds `bytes` between each worker and the other workers.
  void AddAmongWorkers(WideInteger bytes) { among_workers_ += bytes; }

  // Returns the sum of each node.
  std::vector<int64_t> Totals() const {
    WideInteger with_all_shards = 0;
    for (const WideInteger bytes : by_shard_) with_all_shards += bytes;
    const auto shards = std::ssize(by_shard_);
    std::vector<int64_t> totals;
    totals.reserve(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const bool is_worker = static_cast<int64_t>(i) < workers_;
      const bool is_shard = static_cast<int64_t>(i) < shards;
      const WideInteger own = is_shard ? by_shard_[i] : 0;
      WideInteger bytes = nodes_[i];
      if (is_worker) bytes += with_all_shards - own + among_workers_;
      if (is_shard) bytes += own * (workers_ - (is_worker ? 1 : 0));
      totals.push_back(SaturateToInt64(bytes));
    }
    return totals;
  }

 private:
  const int64_t workers_;  // Number of workers.
  std::vector<WideInteger>
      by_shard_;  // Bytes between the shard and one worker.
  // Bytes that differ between workers, by node.
  std::vector<WideInteger> nodes_;
  WideInteger among_workers_ = 0;  // Bytes of one worker with its peers.
};

// Adds one all-reduce. Worker p sends the sums of all segments but segment p +
// 1, which it completes, and the means of all but segment p + 2; it receives
// the sums of all but its own segment p, and the means of all but segment p + 1
// (worker/machine/ring_syncer.h).
void AddRing(int64_t elements, WireType wire, int64_t workers,
             const Framing& framing, NodeBytes& nodes) {
  if (workers == 1) return;
  const RingSegments segments(elements, workers);
  std::vector<WideInteger> bytes;
  WideInteger all = 0;
  for (int64_t index = 0; index < workers; ++index) {
    bytes.push_back(framing.Bytes(segments.Length(index), wire));
    all += bytes.back();
  }
  for (int64_t worker = 0; worker < workers; ++worker) {
    nodes.AddForWorker(worker, 4 * all - bytes[worker] -
                                   2 * bytes[(worker + 1) % workers] -
                                   bytes[(worker + 2) % workers]);
  }
}

void CheckArguments(int64_t workers, const Framing& framing) {
  NEREUS_CHECK(workers >= 1 && workers <= kWorkersMax) << workers;
  NEREUS_CHECK(framing.header_bytes >= 0 &&
               framing.header_bytes <= kFrameHeaderBytesMax)
      << framing.header_bytes;
  NEREUS_CHECK(framing.elements_max >= 1) << framing.elements_max;
}

}  // namespace

std::vector<int64_t> PredictNodeBytes(
    absl::Span<const LayerSpec> layers, absl::Span<const Route> routes,
    const Placement& placement, int64_t workers, int64_t frame_header_bytes,
    int64_t frame_elements_max, bool decoupled) {
  const Framing framing{frame_header_bytes, frame_elements_max};
  const int64_t pull_bytes = decoupled ? frame_header_bytes : 0;
  CheckArguments(workers, framing);
  NEREUS_CHECK(static_cast<int>(layers.size()) == placement.layers() &&
               layers.size() == routes.size())
      << layers.size() << " layers, " << placement.layers() << " placed, "
      << routes.size() << " routes";
  NodeBytes nodes(workers, placement.shards());
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = layers[i];
    const WireType wire = routes[i].wire;
    NEREUS_CHECK(SupportsScheme(layer, routes[i].scheme))
        << DescribeLayer(layer);
    switch (routes[i].scheme) {
      case Scheme::kServer:
        for (const Chunk& chunk : placement.layer_chunks(i)) {
          nodes.AddAllWorkersWithShard(
              chunk.shard, 2 * framing.Bytes(chunk.length, wire) + pull_bytes);
        }
        break;
      case Scheme::kFactor: {
        const WideInteger rows = layer.rows;
        nodes.AddAmongWorkers(2 * (workers - 1) *
                              (framing.Bytes(rows * layer.m, wire) +
                               framing.Bytes(rows * layer.n, wire)));
        break;
      }
      case Scheme::kRing:
        AddRing(layer.parameters, wire, workers, framing, nodes);
        break;
    }
  }
  return nodes.Totals();
}

std::vector<int64_t> PredictInitialBytes(absl::Span<const Route> routes,
                                         const Placement& placement,
                                         int64_t workers,
                                         int64_t frame_header_bytes,
                                         int64_t frame_elements_max,
                                         bool servers_update) {
  const Framing framing{frame_header_bytes, frame_elements_max};
  CheckArguments(workers, framing);
  NodeBytes nodes(workers, placement.shards());
  for (const Chunk& chunk : placement.chunks()) {
    const Route& route = routes[chunk.layer];
    const bool owned = !servers_update || !UsesServers(route.scheme);
    nodes.AddFirstWorkerWithShard(
        chunk.shard, framing.Bytes(chunk.length, WireType::kFloat32));
    nodes.AddAllWorkersWithShard(
        chunk.shard, frame_header_bytes +
                         framing.Bytes(chunk.length, owned ? WireType::kFloat32
                                                           : route.wire));
  }
  return nodes.Totals();
}

}  // namespace nereus
