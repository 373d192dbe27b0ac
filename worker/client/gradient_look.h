#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tensor/arrival.h"

namespace nereus {

// The first of `values` that is NaN or infinite, as `arrival` finds it, or else
// when all are there. `arrival` may be null. Errors: they never will be.
absl::StatusOr<NotFinite> FindNotFinite(absl::Span<const float> values,
                                        Arrival* arrival);

}  // namespace nereus
