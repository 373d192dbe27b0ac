#include "common/protocol/block_update.h"

namespace nereus {

void AddBlockUpdate(const Job& job, int layer, int64_t round, bool resumed,
                    int64_t offset, float scale, const Buffer& gradient,
                    const Buffer& parameters, const Buffer& state,
                    Outbox& out) {
  OptimizerOptions optimizer = job.options.optimizer;
  if (resumed) optimizer.momentum = 0.0f;
  out.Add(UpdateParameters{layer, optimizer, round, scale, gradient, parameters,
                           state, parameters,
                           ResultCheck(job, layer, round, offset),
                           /*clears_state=*/resumed});
}

}  // namespace nereus
