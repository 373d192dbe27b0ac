#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Number format in which float32 values travel. Arithmetic is in float32
// everywhere: only frames have values in the 16-bit formats
// (common/driver/wire_values.h). Frames carry the numbers of this enum, so a
// change of the numbers is a change of the protocol.
enum class WireType : uint8_t {
  kNone = 0,      // The frame has no values: a hello, a pull.
  kFloat32 = 1,   // "fp32": 24 bits of precision.
  kBfloat16 = 2,  // "bf16": float32's range, 8 bits of precision.
  // "fp16": 11 bits of precision. The sender scales each frame by a power of
  // two, because the range of fp16 is small.
  kFloat16 = 3,
};

// All wire types of frames with values.
inline constexpr WireType kWireTypes[] = {
    WireType::kFloat32, WireType::kBfloat16, WireType::kFloat16};

// Returns the name of `wire`, as --wire takes it: "fp32".
absl::string_view WireTypeName(WireType wire);

// Returns the wire type that is called `name`; "none" is refused. Errors:
// kInvalidArgument, with the name and the known names.
absl::StatusOr<WireType> ParseWireType(absl::string_view name);

// Returns the length of one value, in bytes; 0 for kNone.
constexpr int64_t WireBytes(WireType wire) {
  switch (wire) {
    case WireType::kNone:
      return 0;
    case WireType::kFloat32:
      return 4;
    case WireType::kBfloat16:
    case WireType::kFloat16:
      return 2;
  }
  return 0;
}

}  // namespace nereus
