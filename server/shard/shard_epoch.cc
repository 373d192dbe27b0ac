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

}  // namespace nereus
