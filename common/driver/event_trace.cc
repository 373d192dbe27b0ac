#include "common/driver/event_trace.h"

#include <type_traits>
#include <variant>

#include "absl/algorithm/container.h"
#include "common/base/clock.h"
#include "common/protocol/action_visitor.h"

namespace nereus {
namespace {

// Round of arithmetic that follows from a frame or event of a round.
constexpr int64_t kRoundOfEvent = kInitialRound - 1;

Span Arithmetic(SpanKind kind, int32_t layer = -1,
                int64_t round = kRoundOfEvent) {
  Span span;
  span.kind = kind;
  span.layer = layer;
  span.round = round;
  return span;
}

// Returns the span of an action, without times; nothing for actions that have
// no span, or one of their own (EndSend).
std::optional<Span> SpanOf(const Action& action) {
  using Found = std::optional<Span>;
  return std::visit(
      ActionVisitor{
          [](const Accumulate&) -> Found { return Arithmetic(SpanKind::kAdd); },
          [](const UpdateParameters& update) -> Found {
            return Arithmetic(SpanKind::kUpdate, update.layer, update.step);
          },
          [](const MultiplyFactors&) -> Found {
            return Arithmetic(SpanKind::kMultiply);
          },
          [](const SplitGradient& split) -> Found {
            return Arithmetic(SpanKind::kArithmetic, split.layer);
          },
          [](const ChecksumValues& values) -> Found {
            return Arithmetic(SpanKind::kArithmetic, values.layer,
                              values.round);
          },
          [](const LayerDone& done) -> Found {
            return Arithmetic(SpanKind::kDone, done.layer, done.round);
          },
          [](const auto& other) -> Found {
            using Other = std::decay_t<decltype(other)>;
            constexpr bool kIsArithmetic = std::is_same_v<Other, CopyValues> ||
                                           std::is_same_v<Other, CheckValues> ||
                                           std::is_same_v<Other, ScaleValues> ||
                                           std::is_same_v<Other, RoundValues> ||
                                           std::is_same_v<Other, SelectBlocks>;
            if (!kIsArithmetic) return std::nullopt;
            return Arithmetic(SpanKind::kArithmetic);
          },
      },
      action);
}

Span SpanOf(SpanKind kind, PeerId peer, const FrameHeader& header) {
  Span span;
  span.kind = kind;
  // A vote is on a step of all layers.
  span.layer =
      header.kind == FrameKind::kVote ? -1 : static_cast<int32_t>(header.layer);
  span.chunk = static_cast<int32_t>(header.chunk);
  span.round = header.round;
  span.peer = peer;
  span.frame = header.kind;
  span.bytes = header.payload_bytes;
  return span;
}

}  // namespace

void EventTrace::Begin() {
  on_ = recorder_ != nullptr && recorder_->is_on();
  if (!on_) return;
  spans_.clear();
  begin_ = SteadyNow();
}

absl::Time EventTrace::BeginAction() const {
  return on_ ? SteadyNow() : absl::InfinitePast();
}

void EventTrace::EndAction(const Action& action, absl::Time begin) {
  if (!on_) return;
  std::optional<Span> span = SpanOf(action);
  if (!span.has_value()) return;
  span->begin = begin;
  span->end = SteadyNow();
  spans_.push_back(*span);
}

void EventTrace::EndSend(PeerId self, PeerId to, const FrameHeader& header,
                         absl::Time begin) {
  // The round of a probe is the number of its train.
  if (!on_ || header.kind == FrameKind::kProbe) return;
  Span span = SpanOf(SpanKind::kSend, to, header);
  span.flow = FlowOf(self, to, header);
  span.begin = begin;
  span.end = SteadyNow();
  spans_.push_back(span);
}

void EventTrace::EndFrame(PeerId self, PeerId from, const FrameHeader& header) {
  if (!on_ || header.kind == FrameKind::kProbe) return;
  if (!recorder_->Covers(header.round)) return;
  Span outer = SpanOf(SpanKind::kFrame, from, header);
  outer.flow = FlowOf(from, self, header);
  Keep(outer);
}

void EventTrace::EndEvent() {
  if (!on_) return;
  const auto covered = absl::c_find_if(spans_, [this](const Span& span) {
    return recorder_->Covers(span.round);
  });
  if (covered == spans_.end()) return;
  Span outer;
  outer.kind = SpanKind::kEvent;
  outer.round = covered->round;
  // An event mostly is of one layer, as a push.
  const bool is_one = absl::c_all_of(spans_, [&](const Span& span) {
    return span.layer == -1 || span.layer == covered->layer;
  });
  if (is_one) outer.layer = covered->layer;
  Keep(outer);
}

void EventTrace::Keep(const Span& outer) {
  for (Span& span : spans_) {
    if (span.layer == -1) span.layer = outer.layer;
    if (span.chunk == -1) span.chunk = outer.chunk;
    if (span.round == kRoundOfEvent) span.round = outer.round;
  }
  std::erase_if(spans_, [this](const Span& span) {
    return !recorder_->Covers(span.round);
  });
  Span& kept = spans_.emplace_back(outer);
  kept.begin = begin_;
  kept.end = SteadyNow();
  recorder_->Add(spans_);
}

}  // namespace nereus
