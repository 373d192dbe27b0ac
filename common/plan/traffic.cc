#include "common/plan/traffic.h"

#include <algorithm>

#include "common/base/logging.h"
#include "common/plan/cost_model.h"
#include "common/plan/ring_segments.h"
#include "common/plan/scheme.h"
#include "common/plan/wide_integer.h"

namespace nereus {
namespace {

// Largest `frame_header_bytes` that callers may pass.
constexpr int64_t kFrameHeaderBytesMax = 65536;

// Rule by which a payload becomes frames.
struct Framing {
  int64_t header_bytes = 0;  // Length of a frame's header.
  int64_t elements_max = 1;  // Largest number of values of a frame.

  // Returns the length of all frames that carry `elements` values.
  WideInteger Bytes(WideInteger elements, WireType wire) const {
    const WideInteger frames = (elements + elements_max - 1) / elements_max;
    return elements * WireBytes(wire) + frames * header_bytes;
  }
};

// Sum of the bytes of each host's link. All parties exchange equally many bytes
// with a shard, so each shard needs only one sum, and Totals adds it to the
// hosts. A table of all pairs of host and shard would not fit into memory with
// 65,536 hosts.
class LinkBytes {
 public:
  // Kinds of parties. A party exchanges values with the shards. It is a host,
  // for all its workers together, or a single worker.
  enum class Parties { kHosts, kWorkers };

  // Makes sums of 0 for the hosts of `hosts`, which is borrowed.
  LinkBytes(const HostMap& hosts, Parties parties)
      : hosts_(hosts),
        parties_(hosts.hosts(), 0),
        by_shard_(hosts.shards(), 0),
        links_(hosts.hosts(), 0) {
    for (int64_t host = 0; host < hosts.hosts(); ++host) {
      const int64_t workers = hosts.WorkersAt(host);
      parties_[host] =
          parties == Parties::kHosts ? std::min<int64_t>(workers, 1) : workers;
      all_parties_ += parties_[host];
    }
  }

  // Adds `bytes` between each party and `shard`.
  void AddAllWithShard(int32_t shard, WideInteger bytes) {
    by_shard_[shard] += bytes;
  }

  // Adds `bytes` between worker 0 and `shard`.
  void AddFirstWorkerWithShard(int32_t shard, WideInteger bytes) {
    const int32_t from = hosts_.HostOfWorker(0);
    const int32_t to = hosts_.HostOfShard(shard);
    if (from == to) return;
    links_[from] += bytes;
    links_[to] += bytes;
  }

  // Adds `bytes` to the sum of `host` only.
  void AddForHost(int64_t host, WideInteger bytes) { links_[host] += bytes; }

  // Returns the sum of each host.
  std::vector<int64_t> Totals() const {
    WideInteger with_all_shards = 0;
    std::vector<WideInteger> with_own_shards(links_.size(), 0);
    for (size_t shard = 0; shard < by_shard_.size(); ++shard) {
      with_all_shards += by_shard_[shard];
      with_own_shards[hosts_.HostOfShard(shard)] += by_shard_[shard];
    }
    std::vector<int64_t> totals;
    totals.reserve(links_.size());
    for (size_t host = 0; host < links_.size(); ++host) {
      const WideInteger own = with_own_shards[host];
      const WideInteger others = all_parties_ - parties_[host];
      totals.push_back(SaturateToInt64(
          links_[host] + parties_[host] * (with_all_shards - own) +
          others * own));
    }
    return totals;
  }

 private:
  const HostMap& hosts_;              // Borrowed.
  std::vector<WideInteger> parties_;  // Number of parties of each host.
  WideInteger all_parties_ = 0;       // Number of parties of all hosts.
  // Bytes that each shard exchanges with one party.
  std::vector<WideInteger> by_shard_;
  // Bytes of each host that are not in by_shard_.
  std::vector<WideInteger> links_;
};

// Adds one all-reduce (worker/machine/ring_exchange.h). The host at place p of
// the ring begins the sum of segment p and completes the sum of segment p + 1.
// The host sends sums of all segments except p + 1, and means of all segments
// except p + 2. The host receives sums of all segments except p, and means of
// all segments except p + 1.
void AddRing(int64_t elements, WireType wire, const HostMap& hosts,
             const Framing& framing, LinkBytes& links) {
  const absl::Span<const int32_t> ring = hosts.ring();
  const size_t count = ring.size();
  if (count == 1) return;
  const RingSegments segments(elements, static_cast<int64_t>(count));
  std::vector<WideInteger> bytes;
  WideInteger all = 0;
  for (size_t index = 0; index < count; ++index) {
    bytes.push_back(
        framing.Bytes(segments.Length(static_cast<int64_t>(index)), wire));
    all += bytes.back();
  }
  for (size_t place = 0; place < count; ++place) {
    links.AddForHost(ring[place], 4 * all - bytes[place] -
                                      2 * bytes[(place + 1) % count] -
                                      bytes[(place + 2) % count]);
  }
}

// Adds one direct round: each host with workers sends all values to every other
// one.
void AddDirect(WideInteger bytes, const HostMap& hosts, LinkBytes& links) {
  const auto others = std::ssize(hosts.ring()) - 1;
  for (const int32_t host : hosts.ring()) {
    links.AddForHost(host, 2 * others * bytes);
  }
}

// Adds one round of factors. Each worker sends `bytes` once to every other host
// with workers. The workers of the receiving host hand the factors to each
// other through memory.
void AddFactors(WideInteger bytes, const HostMap& hosts, LinkBytes& links) {
  const auto others = std::ssize(hosts.ring()) - 1;
  for (const int32_t host : hosts.ring()) {
    const int64_t local = hosts.WorkersAt(host);
    const WideInteger sent = WideInteger{local} * others;
    const int64_t received = hosts.workers() - local;
    links.AddForHost(host, (sent + received) * bytes);
  }
}

// Checks what the functions of traffic.h require of these arguments.
void CheckArguments(const HostMap& hosts, const Placement& placement,
                    const Framing& framing) {
  NEREUS_CHECK(hosts.workers() <= kWorkersMax) << hosts.workers();
  NEREUS_CHECK(hosts.shards() == placement.shards())
      << hosts.shards() << " shards on hosts, " << placement.shards()
      << " of the placement";
  NEREUS_CHECK(framing.header_bytes >= 0 &&
               framing.header_bytes <= kFrameHeaderBytesMax)
      << framing.header_bytes;
  NEREUS_CHECK(framing.elements_max >= 1) << framing.elements_max;
}

}  // namespace

std::vector<int64_t> PredictLinkBytes(absl::Span<const LayerSpec> layers,
                                      absl::Span<const Route> routes,
                                      const Placement& placement,
                                      const HostMap& hosts,
                                      int64_t frame_header_bytes,
                                      int64_t frame_elements_max) {
  const Framing framing{frame_header_bytes, frame_elements_max};
  CheckArguments(hosts, placement, framing);
  NEREUS_CHECK(static_cast<int>(layers.size()) == placement.layers() &&
               layers.size() == routes.size())
      << layers.size() << " layers, " << placement.layers() << " placed, "
      << routes.size() << " routes";
  LinkBytes links(hosts, LinkBytes::Parties::kHosts);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = layers[i];
    const WireType wire = routes[i].wire;
    NEREUS_CHECK(SupportsScheme(layer, routes[i].scheme))
        << DescribeLayer(layer);
    switch (routes[i].scheme) {
      case Scheme::kServer:
        for (const Chunk& chunk : placement.layer_chunks(i)) {
          links.AddAllWithShard(chunk.shard,
                                2 * framing.Bytes(chunk.length, wire));
        }
        break;
      case Scheme::kFactor: {
        const WideInteger rows = layer.rows;
        AddFactors(framing.Bytes(rows * layer.m, wire) +
                       framing.Bytes(rows * layer.n, wire),
                   hosts, links);
        break;
      }
      case Scheme::kRing:
        AddRing(layer.parameters, wire, hosts, framing, links);
        break;
      case Scheme::kDirect:
        AddDirect(framing.Bytes(layer.parameters, wire), hosts, links);
        break;
    }
  }
  return links.Totals();
}

std::vector<int64_t> PredictInitialBytes(absl::Span<const Route> routes,
                                         const Placement& placement,
                                         const HostMap& hosts,
                                         int64_t frame_header_bytes,
                                         int64_t frame_elements_max,
                                         bool servers_update) {
  const Framing framing{frame_header_bytes, frame_elements_max};
  CheckArguments(hosts, placement, framing);
  LinkBytes links(hosts, LinkBytes::Parties::kWorkers);
  for (const Chunk& chunk : placement.chunks()) {
    const Route& route = routes[chunk.layer];
    const bool owned = !servers_update || !UsesServers(route.scheme);
    links.AddFirstWorkerWithShard(
        chunk.shard, framing.Bytes(chunk.length, WireType::kFloat32));
    links.AddAllWithShard(
        chunk.shard, frame_header_bytes +
                         framing.Bytes(chunk.length, owned ? WireType::kFloat32
                                                           : route.wire));
  }
  return links.Totals();
}

}  // namespace nereus
