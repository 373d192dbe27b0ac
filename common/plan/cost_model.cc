#include "common/plan/cost_model.h"

#include "common/base/status.h"
#include "common/plan/wide_integer.h"

namespace nereus {
namespace {

// M N.
WideInteger MatrixElements(const LayerSpec& layer) {
  return WideInteger{layer.m} * layer.n;
}

// K (M + N): the factors of one worker.
WideInteger FactorElements(const LayerSpec& layer) {
  return WideInteger{layer.rows} * (layer.m + layer.n);
}

// FactorSchemeElements before it is cut to 64 bits.
WideInteger FactorSchemeWide(const LayerSpec& layer,
                             const ClusterShape& cluster) {
  return 2 * (cluster.workers - 1) * FactorElements(layer);
}

// ServerSchemeBothElements times P2, before the division that rounds.
WideInteger ServerSchemeBothTimesServers(WideInteger elements,
                                         const ClusterShape& cluster) {
  return 2 * elements * (cluster.workers + cluster.servers - 2);
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
  return SaturateToInt64(4 * WideInteger{elements} * (cluster.workers - 1) /
                         cluster.workers);
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
  }
  return 0;
}

bool FactorsMoveNoMore(const LayerSpec& layer, const ClusterShape& cluster) {
  return FactorSchemeWide(layer, cluster) * cluster.servers <=
         ServerSchemeBothTimesServers(MatrixElements(layer), cluster);
}

}  // namespace nereus
