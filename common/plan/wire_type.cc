#include "common/plan/wire_type.h"

#include "absl/strings/escaping.h"
#include "common/base/status.h"

namespace nereus {

absl::string_view WireTypeName(WireType wire) {
  switch (wire) {
    case WireType::kNone:
      return "none";
    case WireType::kFloat32:
      return "fp32";
    case WireType::kBfloat16:
      return "bf16";
    case WireType::kFloat16:
      return "fp16";
  }
  return "unknown";
}

absl::StatusOr<WireType> ParseWireType(absl::string_view name) {
  for (const WireType wire : kWireTypes) {
    if (name == WireTypeName(wire)) return wire;
  }
  return InvalidArgumentError("unknown wire type \"",
                              absl::CHexEscape(name.substr(0, 64)),
                              "\", known are fp32, bf16 and fp16");
}

}  // namespace nereus
