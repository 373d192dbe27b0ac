#include "server/shard/shard_epoch.h"

#include <memory>
#include <vector>

namespace nereus {

RankList ShardEpoch::CarriersOf(const Chunk& chunk, int64_t round) const {
  auto ranks = std::make_shared<std::vector<int32_t>>();
  for (int host = 0; host < job->LineupOf(round).hosts(); ++host) {
    ranks->push_back(CarrierOf(chunk, round, host));
  }
  return ranks;
}

// In partial rounds each worker contributes and asks for itself. In other
// rounds a worker that is not the carrier gets results from the carrier of its
// host.
bool ShardEpoch::IsAskedBy(const Chunk& chunk, int64_t round,
                           int32_t rank) const {
  if (!job->decoupled() || job->partial()) return job->decoupled();
  return CarrierOf(chunk, round, job->LineupOf(round).HostOf(rank)) == rank;
}

}  // namespace nereus
