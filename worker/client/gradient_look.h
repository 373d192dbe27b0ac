#pragma once

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Returns the first value that is NaN or infinite. The index in the result is
// below 0 if all values are finite. `arrival`: null if the values are in
// memory. Otherwise the values are still being copied from a device, and the
// arrival searches them there. If the arrival cannot search, this function
// waits for the values and searches them itself. Errors: the values will never
// arrive.
absl::StatusOr<BadValue> FindTooLarge(absl::Span<const float> values,
                                      Arrival* arrival);

}  // namespace nereus
