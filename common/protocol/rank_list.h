#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/job.h"

namespace nereus {

// Ranks of the workers that get a frame, ascending. All frames of a result
// share one list, so sending a frame does not copy it.
using RankList = std::shared_ptr<const std::vector<int32_t>>;

// Returns the ranks of `workers`, without `self`: a worker does not send to
// itself. A server passes -1, the rank of no worker.
RankList RanksOf(absl::Span<const EpochWorker> workers, int32_t self = -1);

}  // namespace nereus
