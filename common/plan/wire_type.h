#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nereus {

// How a float32 value travels. Arithmetic is float32 everywhere: the 16-bit
// types are for the way alone (common/driver/wire_values.h).
enum class WireType : uint8_t {
  kNone = 0,      // No values: hello, refusal, pull.
  kFloat32 = 1,   // "fp32"
  kBfloat16 = 2,  // "bf16": float32's range, 8 bits of precision.
  kFloat16 = 3,   // "fp16": 11 bits, scaled frame by frame to make up for its
                  // small range.
};

inline constexpr WireType kWireTypes[] = {
    WireType::kFloat32, WireType::kBfloat16, WireType::kFloat16};

absl::string_view WireTypeName(WireType wire);

// Errors: kInvalidArgument, with the name and the known ones.
absl::StatusOr<WireType> ParseWireType(absl::string_view name);

// Of one value.
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
