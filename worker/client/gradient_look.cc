#include "worker/client/gradient_look.h"

#include <cstdint>

#include "common/base/status.h"
#include "common/compute/vectors.h"

namespace nereus {

absl::StatusOr<BadValue> FindTooLarge(absl::Span<const float> values,
                                      Arrival* arrival) {
  if (arrival != nullptr) {
    absl::StatusOr<BadValue> found = arrival->FindTooLarge();
    if (!absl::IsUnimplemented(found.status())) return found;
    // The arrival cannot search the values, so this function does.
    NEREUS_TRY(
        arrival->Await(static_cast<int64_t>(values.size() * sizeof(float))));
  }
  const int64_t index = FindTooLarge(values.data(), values.size());
  return index < 0 ? BadValue() : BadValue{index, values[index]};
}

}  // namespace nereus
