#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/job.h"

namespace nereus {

// Ranks of the workers that receive a frame, ascending. All frames with the
// same receivers share one list, so that no frame needs a copy of the list.
using RankList = std::shared_ptr<const std::vector<int32_t>>;

// Returns the ranks of `workers`, without `self`, because a worker does not
// send to itself. A server passes -1, which is the rank of no worker.
RankList RanksOf(absl::Span<const EpochWorker> workers, int32_t self = -1);

}  // namespace nereus
