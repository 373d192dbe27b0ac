#pragma once

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Returns the first value that is NaN or infinite; its index is below 0 if all
// are finite. `arrival`, null for values that have arrived, finds it where the
// values are, on a device, or else this waits for them. Errors: the values will
// never arrive.
absl::StatusOr<NotFinite> FindNotFinite(absl::Span<const float> values,
                                        Arrival* arrival);

}  // namespace nereus
