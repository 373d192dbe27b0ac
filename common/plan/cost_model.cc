#include "common/plan/cost_model.h"

#include "common/base/status.h"
#include "common/plan/wide_integer.h"

namespace nereus {
namespace {

// Returns M N.
WideInteger MatrixElements(const LayerSpec& layer) {
  return WideInteger{layer.m} * layer.n;
}

// Returns K (M + N), the elements of one worker's factors.
WideInteger FactorElements(const LayerSpec& layer) {
  return WideInteger{layer.rows} * (layer.m + layer.n);
}

// Returns FactorSchemeElements before the cut to 64 bits.
WideInteger FactorSchemeWide(const LayerSpec& layer,
                             const ClusterShape& cluster) {
  const int64_t local = cluster.host_workers_most();
  const WideInteger sent = WideInteger{local} * (cluster.worker_hosts() - 1);
  const int64_t received = cluster.workers - local;
  return (sent + received) * FactorElements(layer);
}

// Returns ServerSchemeBothElements times P2, before the division that rounds.
// The host exchanges values with the P2 - S shards of other hosts, and its own
// S shards with H - 1 other hosts.
WideInteger ServerSchemeBothTimesServers(WideInteger elements,
                                         const ClusterShape& cluster) {
  const WideInteger servers = cluster.host_servers_most();
  return 2 * elements *
         (cluster.servers - servers + servers * (cluster.worker_hosts() - 1));
}

}  // namespace

absl::Status ClusterShape::Validate() const {
  if (workers < 1 || workers > kWorkersMax) {
    return InvalidArgumentError("workers is ", workers, ", not from 1 to ",
                                kWorkersMax);
  }
  if (servers < 1 || servers > kServersMax) {
    return InvalidArgumentError("servers is ", servers, ", not from 1 to ",
                                kServersMax);
  }
  if (hosts < 0 || hosts > workers) {
    return InvalidArgumentError("hosts is ", hosts, ", of ", workers,
                                " workers: each host has a worker at least");
  }
  return absl::OkStatus();
}

int64_t ServerSchemeBothElements(int64_t elements,
                                 const ClusterShape& cluster) {
  return SaturateToInt64(ServerSchemeBothTimesServers(elements, cluster) /
                         cluster.servers);
}

int64_t FactorSchemeElements(const LayerSpec& layer,
                             const ClusterShape& cluster) {
  return SaturateToInt64(FactorSchemeWide(layer, cluster));
}

int64_t RingSchemeElements(int64_t elements, const ClusterShape& cluster) {
  const int64_t hosts = cluster.worker_hosts();
  return SaturateToInt64(4 * WideInteger{elements} * (hosts - 1) / hosts);
}

int64_t DirectSchemeElements(int64_t elements, const ClusterShape& cluster) {
  return SaturateToInt64(2 * WideInteger{elements} *
                         (cluster.worker_hosts() - 1));
}

int64_t SchemeElements(const LayerSpec& layer, Scheme scheme,
                       const ClusterShape& cluster) {
  switch (scheme) {
    case Scheme::kServer:
      return ServerSchemeBothElements(layer.parameters, cluster);
    case Scheme::kFactor:
      return FactorSchemeElements(layer, cluster);
    case Scheme::kRing:
      return RingSchemeElements(layer.parameters, cluster);
    case Scheme::kDirect:
      return DirectSchemeElements(layer.parameters, cluster);
  }
  return 0;
}

bool FactorsMoveNoMore(const LayerSpec& layer, const ClusterShape& cluster) {
  return FactorSchemeWide(layer, cluster) * cluster.servers <=
         ServerSchemeBothTimesServers(MatrixElements(layer), cluster);
}

bool SharesProduct(const LayerSpec& layer, int64_t workers, int64_t local) {
  return local > 1 && local <= layer.m &&
         WideInteger{layer.rows} * workers >= kSharedProductRowsMin;
}

double ProductsOf(const LayerSpec& layer, int64_t workers, int64_t local) {
  const auto all = static_cast<double>(workers);
  return SharesProduct(layer, workers, local) ? all / static_cast<double>(local)
                                              : all - 1;
}

int64_t LocalElements(const LayerSpec& layer, Scheme scheme,
                      const ClusterShape& cluster) {
  const WideInteger mates = cluster.host_workers_most() - 1;
  if (scheme != Scheme::kFactor) {
    return SaturateToInt64(2 * mates * MatrixElements(layer));
  }
  WideInteger elements = cluster.workers * FactorElements(layer);
  if (SharesProduct(layer, cluster.workers, cluster.host_workers_most())) {
    elements += MatrixElements(layer);
  }
  return SaturateToInt64(mates * elements);
}

}  // namespace nereus
