#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "worker/c_api/bound_client.h"
#include "worker/c_api/nereus.h"

namespace nereus {

// Sizes of the structs in the first nereus.h. They never change.
inline constexpr size_t kClientOptionsBytesMin = 120;
inline constexpr size_t kLayerBytesMin = 80;
inline constexpr size_t kStepBytesMin = 48;
inline constexpr size_t kTraitsBytesMin = 56;
inline constexpr size_t kFactorsBytesMin = 40;

// Returns what the structs of a caller say. Errors: kInvalidArgument, with the
// field and its value.
absl::StatusOr<Binding> ReadBinding(const nereus_client_options* options,
                                    const nereus_layer* layers,
                                    int32_t layer_count);

}  // namespace nereus
