#pragma once

#include <cstdint>

#include "common/protocol/job.h"
#include "common/protocol/outbox.h"

namespace nereus {

// What a sparse round does to a block of `parameters` and the optimizer's
// `state`: an update, by the mean of the contributions, `scale` times
// `gradient`. Contributions to a block that was held back (`resumed`) have had
// its momentum: they move it by themselves, and leave it without velocity.
void AddBlockUpdate(const Job& job, int64_t round, bool resumed, float scale,
                    const Buffer& gradient, const Buffer& parameters,
                    const Buffer& state, Outbox& out);

}  // namespace nereus
