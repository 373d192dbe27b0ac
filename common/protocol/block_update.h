#pragma once

#include <cstdint>

#include "common/protocol/job.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Appends to `out` the action that updates one block after a sparse round: its
// `parameters` and its optimizer `state`. `scale` times `gradient` is the mean
// of the contributions. All buffers hold one block, float32.
//
// `resumed`: the block was held back in earlier rounds, and its contributions
// have accumulated momentum while they waited. These contributions move the
// parameters without further momentum, and the velocity becomes zero. If
// momentum were applied a second time, the block would overshoot. (Lin et al.,
// "Deep gradient compression", momentum correction.)
void AddBlockUpdate(const Job& job, int layer, int64_t round, bool resumed,
                    float scale, const Buffer& gradient,
                    const Buffer& parameters, const Buffer& state, Outbox& out);

}  // namespace nereus
