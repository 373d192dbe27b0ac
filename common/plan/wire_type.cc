#include "common/plan/wire_type.h"

#include "absl/strings/escaping.h"
#include "common/base/names.h"
#include "common/base/status.h"

namespace nereus {
namespace {

constexpr Named<WireType> kNames[] = {{WireType::kNone, "none"},
                                      {WireType::kFloat32, "fp32"},
                                      {WireType::kBfloat16, "bf16"},
                                      {WireType::kFloat16, "fp16"}};

}  // namespace

absl::string_view WireTypeName(WireType wire) { return NameOf<kNames>(wire); }

absl::StatusOr<WireType> ParseWireType(absl::string_view name) {
  for (const WireType wire : kWireTypes) {
    if (name == WireTypeName(wire)) return wire;
  }
  return InvalidArgumentError("unknown wire type \"",
                              absl::CHexEscape(name.substr(0, 64)),
                              "\", known are fp32, bf16 and fp16");
}

}  // namespace nereus
