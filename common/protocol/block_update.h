#pragma once

#include <cstdint>

#include "common/protocol/job.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Appends to `out` the action that updates one block, or the part of a block in
// one chunk, after a sparse round: its `parameters` and its optimizer `state`.
// `scale` times `gradient` is the mean of the contributions. Each buffer has
// the float32 values of this block or part, which begins at value `offset` of
// the layer.
//
// `resumed`: the workers held the block back until this round, and applied
// momentum to its gradients meanwhile. So the update applies no momentum, and
// sets the velocity in `state` to zero. If it applied momentum a second time,
// the parameters would overshoot. (Lin et al., "Deep gradient compression",
// momentum correction.)
void AddBlockUpdate(const Job& job, int layer, int64_t round, bool resumed,
                    int64_t offset, float scale, const Buffer& gradient,
                    const Buffer& parameters, const Buffer& state, Outbox& out);

}  // namespace nereus
