#include "common/protocol/span.h"

namespace nereus {

absl::string_view SpanKindName(SpanKind kind) {
  switch (kind) {
    case SpanKind::kForward:
      return "forward";
    case SpanKind::kBackward:
      return "backward";
    case SpanKind::kOther:
      return "other";
    case SpanKind::kWait:
      return "wait";
    case SpanKind::kFrame:
      return "frame";
    case SpanKind::kEvent:
      return "event";
    case SpanKind::kSend:
      return "send";
    case SpanKind::kAdd:
      return "add";
    case SpanKind::kUpdate:
      return "update";
    case SpanKind::kMultiply:
      return "multiply";
    case SpanKind::kArithmetic:
      return "arithmetic";
    case SpanKind::kDone:
      return "done";
    case SpanKind::kCompute:
      return "compute";
    case SpanKind::kCopyOut:
      return "copy out";
    case SpanKind::kCopyIn:
      return "copy in";
    case SpanKind::kTurn:
      return "turn";
  }
  return "unknown";
}

// Mixes the fields that tell a frame from others by the finaliser of
// SplitMix64 (Steele et al., 2014). All builds must give the same number.
uint64_t FlowOf(PeerId from, PeerId to, const FrameHeader& header) {
  uint64_t mixed = 0;
  const auto mix = [&mixed](uint64_t value) {
    mixed += value + 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
  };
  for (const PeerId& peer : {from, to}) {
    mix(static_cast<uint64_t>(peer.role) << 32 |
        static_cast<uint32_t>(peer.rank));
  }
  mix(header.epoch);
  mix(static_cast<uint64_t>(header.round));
  mix(static_cast<uint64_t>(header.layer) << 32 | header.chunk);
  mix(static_cast<uint64_t>(header.kind) << 48 |
      static_cast<uint64_t>(header.part) << 40 | header.offset);
  return mixed;
}

}  // namespace nereus
