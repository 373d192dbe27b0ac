#include "common/protocol/rank_list.h"

namespace nereus {

RankList RanksOf(absl::Span<const EpochWorker> workers, int32_t self) {
  auto ranks = std::make_shared<std::vector<int32_t>>();
  ranks->reserve(workers.size());
  for (const EpochWorker& worker : workers) {
    if (worker.rank != self) ranks->push_back(worker.rank);
  }
  return ranks;
}

}  // namespace nereus
