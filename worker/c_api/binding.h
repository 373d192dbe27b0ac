#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "worker/c_api/nereus.h"
#include "worker/public/client.h"
#include "worker/public/gpu.h"

namespace nereus {

// Arguments of nereus_client_connect, as the types of the C++ client.
struct Binding {
  ClientOptions options;
  GpuOptions gpu;
  bool on_gpu = false;  // True: a client of a GPU, with the options `gpu`.
  std::vector<LayerBinding> layers;
};

// Sizes in bytes that the structs had in the first nereus.h. These numbers
// never change.
inline constexpr size_t kClientOptionsBytesMin = 120;
inline constexpr size_t kLayerBytesMin = 80;
inline constexpr size_t kStepBytesMin = 48;
inline constexpr size_t kTraitsBytesMin = 56;
inline constexpr size_t kFactorsBytesMin = 40;

// Returns OK if `value`, the field `reserved` of the struct `name`, is 0.
// Errors: kInvalidArgument.
absl::Status CheckReserved(absl::string_view name, int32_t value);

// Reads the options of a lobby. Errors: kInvalidArgument, with the field and
// its value.
absl::StatusOr<ClientOptions> ReadLobbyOptions(
    const nereus_client_options* options);

// Reads the structs that a caller has passed to nereus_client_connect. Errors:
// kInvalidArgument, with the field and its value.
absl::StatusOr<Binding> ReadBinding(const nereus_client_options* options,
                                    const nereus_layer* layers,
                                    int32_t layer_count);

}  // namespace nereus
