#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/peer.h"

namespace nereus {

// Work of a member in a span of time.
enum class SpanKind : uint8_t {
  // Spans of a worker's caller (StepPhases): it computed before the first push
  // of a step, for the gradient of a layer, or after the last push; or it
  // waited
  // in a call.
  kForward = 1,
  kBackward = 2,
  kOther = 3,
  kWait = 4,
  // Spans of the driving thread. It handled a frame of a peer, or an event,
  // such as a
  // push of the caller. All that follows from the frame or event lies within
  // the span: it sent a frame, added a contribution, updated parameters,
  // multiplied factors, did other arithmetic, or a round of a layer was done.
  kFrame = 5,
  kEvent = 6,
  kSend = 7,
  kAdd = 8,
  kUpdate = 9,
  kMultiply = 10,
  kArithmetic = 11,
  kDone = 12,
  // Spans of a worker's GPU: it computed a layer's gradient, copied a gradient
  // to the host, or a result from the host.
  kCompute = 13,
  kCopyOut = 14,
  kCopyIn = 15,
  // Span of a worker's caller: another job had the device that they share.
  kTurn = 16,
};

// Smallest and largest number of a SpanKind.
inline constexpr int kSpanKindMin = 1;
inline constexpr int kSpanKindMax = 16;

// Returns the name of `kind` in a trace: "backward".
absl::string_view SpanKindName(SpanKind kind);

// Span of time in which a member did something. A value type.
struct Span {
  SpanKind kind = SpanKind::kEvent;
  int32_t layer = -1;  // Index of the layer; -1: none, or several.
  // Index of the chunk (FrameHeader::chunk); -1: none.
  int32_t chunk = -1;
  int64_t round = kInitialRound;  // Round of the layer, or step.
  // kFrame and kSend: member at the other end, kind of the frame, and length of
  // its payload.
  std::optional<PeerId> peer;
  FrameKind frame = FrameKind::kHello;
  int64_t bytes = 0;
  // kFrame and kSend: number that is the same for the sender and the receiver
  // of a frame, and hardly ever for two frames of a trace (FlowOf).
  uint64_t flow = 0;
  absl::Time begin;  // Times by SteadyNow of the member.
  absl::Time end;

  bool operator==(const Span&) const = default;
};

// Returns Span::flow of a frame that `from` sends to `to`.
uint64_t FlowOf(PeerId from, PeerId to, const FrameHeader& header);

// Largest number of steps of a trace.
inline constexpr int64_t kTraceStepsMax = 100000;
// Largest number of spans that a member keeps for a trace. Span takes 80 bytes.
inline constexpr int64_t kTraceSpansMax = 4'000'000;
// Largest number of spans in one TracePart.
inline constexpr int64_t kTracePartSpansMax = 20'000;

// Comparison of a member's clock with the coordinator's, by one question and
// its answer (Cristian, "Probabilistic clock synchronization", 1989).
struct ClockSample {
  // Time on the member's clock, half way between question and answer.
  absl::Time at;
  absl::Duration offset;  // Time on the coordinator's clock minus `at`.
  absl::Duration error;   // Largest error of `offset`: half of the round trip.

  bool operator==(const ClockSample&) const = default;
};

}  // namespace nereus
