#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
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

// OK if the field `reserved` of the struct `name` is 0. Errors:
// kInvalidArgument.
absl::Status CheckReserved(absl::string_view name, int32_t value);

// Returns what the structs of a caller say. Errors: kInvalidArgument, with the
// field and its value.
absl::StatusOr<Binding> ReadBinding(const nereus_client_options* options,
                                    const nereus_layer* layers,
                                    int32_t layer_count);

}  // namespace nereus
