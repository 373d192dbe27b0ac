#pragma once

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Returns the first value that is NaN or infinite; its index is below 0 if all
// are finite. `arrival`: null if the values have arrived. Otherwise the arrival
// searches the values on their device; if it cannot, this function waits for
// the values and searches them. Errors: the values will never arrive.
absl::StatusOr<NotFinite> FindNotFinite(absl::Span<const float> values,
                                        Arrival* arrival);

}  // namespace nereus
