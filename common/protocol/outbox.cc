#include "common/protocol/outbox.h"

namespace nereus {

RankList RanksOf(absl::Span<const EpochWorker> workers, int32_t self) {
  auto ranks = std::make_shared<std::vector<int32_t>>();
  ranks->reserve(workers.size());
  for (const EpochWorker& worker : workers) {
    if (worker.rank != self) ranks->push_back(worker.rank);
  }
  return ranks;
}

void AddBlockUpdate(const Job& job, int layer, int64_t round, bool resumed,
                    int64_t offset, float scale, const Buffer& gradient,
                    const Buffer& parameters, const Buffer& state,
                    Outbox& out) {
  OptimizerOptions optimizer = job.OptimizerOf(round);
  if (resumed) optimizer.momentum = 0.0f;
  out.Add(UpdateParameters{layer, optimizer, round, scale, gradient, parameters,
                           state, parameters,
                           ResultCheck(job, layer, round, offset),
                           /*clears_state=*/resumed});
}

}  // namespace nereus
