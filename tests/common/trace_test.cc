// Tests of what records a trace in a process: SpanRecorder, EventTrace, Tracer.

#include "common/protocol/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/driver/event_trace.h"
#include "common/driver/tracer.h"
#include "common/protocol/span.h"
#include "common/trace/span_recorder.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

Span SpanOfRound(int64_t round) {
  Span span;
  span.round = round;
  return span;
}

FrameHeader HeaderOf(FrameKind kind, uint32_t layer, int64_t round) {
  FrameHeader header;
  header.kind = kind;
  header.layer = layer;
  header.round = round;
  header.payload_bytes = 400;
  return header;
}

TEST(SpanRecorderTest, KeepsSpansFromTheOrderToTheEnd) {
  SpanRecorder recorder;
  EXPECT_FALSE(recorder.is_on());
  const Span span = SpanOfRound(4);
  recorder.Add({&span, 1});
  EXPECT_THAT(recorder.Take().spans, IsEmpty());

  recorder.Begin({7, 3, 5, 100});
  EXPECT_TRUE(recorder.is_on());
  EXPECT_FALSE(recorder.Covers(2));
  EXPECT_TRUE(recorder.Covers(3));
  EXPECT_TRUE(recorder.Covers(5));
  EXPECT_FALSE(recorder.Covers(6));
  recorder.Add({&span, 1});
  EXPECT_THAT(recorder.Take().spans, ElementsAre(span));
  EXPECT_FALSE(recorder.Covers(4));
}

TEST(SpanRecorderTest, AnotherOrderOfATraceChangesItsSteps) {
  SpanRecorder recorder;
  recorder.Begin({7, 0, kStepMax, 2});
  const std::vector<Span> early = {SpanOfRound(1), SpanOfRound(2)};
  recorder.Add(early);
  recorder.Begin({7, 2, 3, 2});
  EXPECT_FALSE(recorder.Covers(1));
  const Span late = SpanOfRound(3);
  recorder.Add({&late, 1});
  const SpanRecorder::Taken taken = recorder.Take();
  EXPECT_THAT(taken.spans, ElementsAre(SpanOfRound(2), SpanOfRound(3)));
  EXPECT_EQ(taken.lost, 0);
}

TEST(SpanRecorderTest, EarlierStepsMakeRoomUntilTheStepsAreChosen) {
  SpanRecorder recorder;
  recorder.Begin({7, 0, kStepMax, 2});
  for (const int64_t round : {1, 1, 2, 3}) {
    const Span span = SpanOfRound(round);
    recorder.Add({&span, 1});
  }
  recorder.Begin({7, 2, 3, 2});
  const SpanRecorder::Taken taken = recorder.Take();
  EXPECT_THAT(taken.spans, ElementsAre(SpanOfRound(2), SpanOfRound(3)));
  EXPECT_EQ(taken.lost, 0);
}

TEST(SpanRecorderTest, CountsSpansThatItCannotKeep) {
  SpanRecorder recorder;
  recorder.Begin({7, 3, 5, 3});
  const std::vector<Span> spans = {SpanOfRound(3), SpanOfRound(4)};
  recorder.Add(spans);
  recorder.Add(spans);
  const SpanRecorder::Taken taken = recorder.Take();
  EXPECT_THAT(taken.spans,
              ElementsAre(SpanOfRound(3), SpanOfRound(4), SpanOfRound(3)));
  EXPECT_EQ(taken.lost, 1);
  recorder.Begin({8, 3, 5, 3});
  EXPECT_EQ(recorder.Take().lost, 0);
}

TEST(EventTraceTest, WhatFollowsFromAFrameHasItsLayerAndRound) {
  SpanRecorder recorder;
  EventTrace trace(&recorder);
  recorder.Begin({7, 3, 5, 100});
  const FrameHeader header = HeaderOf(FrameKind::kContribution, 2, 4);
  trace.Begin();
  trace.EndAction(Accumulate{.sum = Buffer(), .addend = Addend(Buffer())},
                  trace.BeginAction());
  const FrameHeader result = HeaderOf(FrameKind::kResult, 2, 4);
  trace.EndSend(PeerId::Shard(0), PeerId::Worker(1), result,
                trace.BeginAction());
  trace.EndFrame(PeerId::Shard(0), PeerId::Worker(1), header);
  const std::vector<Span> spans = recorder.Take().spans;
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].kind, SpanKind::kAdd);
  EXPECT_EQ(spans[1].kind, SpanKind::kSend);
  EXPECT_EQ(spans[2].kind, SpanKind::kFrame);
  for (const Span& span : spans) {
    EXPECT_EQ(span.layer, 2);
    EXPECT_EQ(span.round, 4);
    EXPECT_LE(spans[2].begin, span.begin);
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, spans[2].end);
  }
  EXPECT_EQ(spans[1].flow, FlowOf(PeerId::Shard(0), PeerId::Worker(1), result));
  EXPECT_EQ(spans[2].flow, FlowOf(PeerId::Worker(1), PeerId::Shard(0), header));
  EXPECT_EQ(spans[2].bytes, 400);
}

TEST(EventTraceTest, OtherRoundsAndEventsWithoutARoundAreNotKept) {
  SpanRecorder recorder;
  EventTrace trace(&recorder);
  recorder.Begin({7, 3, 5, 100});
  trace.Begin();
  trace.EndFrame(PeerId::Shard(0), PeerId::Worker(1),
                 HeaderOf(FrameKind::kContribution, 2, 6));
  trace.Begin();  // The round of a probe is the number of its train.
  trace.EndFrame(PeerId::Shard(0), PeerId::Worker(1),
                 HeaderOf(FrameKind::kProbe, 0, 4));
  trace.Begin();
  trace.EndAction(CopyValues(), trace.BeginAction());
  trace.EndEvent();
  EXPECT_THAT(recorder.Take().spans, IsEmpty());

  recorder.Begin({8, 3, 5, 100});
  trace.Begin();  // An event that ends one round and begins the next.
  trace.EndAction(LayerDone{.layer = 1, .round = 5}, trace.BeginAction());
  trace.EndSend(PeerId::Worker(1), PeerId::Shard(0),
                HeaderOf(FrameKind::kContribution, 1, 6), trace.BeginAction());
  trace.EndEvent();
  const std::vector<Span> spans = recorder.Take().spans;
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].kind, SpanKind::kDone);
  EXPECT_EQ(spans[1].kind, SpanKind::kEvent);
  EXPECT_EQ(spans[1].layer, 1);
  EXPECT_EQ(spans[1].round, 5);
}

TEST(FlowTest, FramesThatDifferHaveOtherFlows) {
  const FrameHeader header = HeaderOf(FrameKind::kResult, 2, 4);
  const uint64_t flow = FlowOf(PeerId::Shard(0), PeerId::Worker(1), header);
  EXPECT_EQ(FlowOf(PeerId::Shard(0), PeerId::Worker(1), header), flow);
  EXPECT_NE(FlowOf(PeerId::Worker(1), PeerId::Shard(0), header), flow);
  EXPECT_NE(FlowOf(PeerId::Shard(0), PeerId::Worker(2), header), flow);
  for (const auto change : std::vector<void (*)(FrameHeader&)>{
           [](FrameHeader& h) { h.kind = FrameKind::kMean; },
           [](FrameHeader& h) { ++h.layer; }, [](FrameHeader& h) { ++h.chunk; },
           [](FrameHeader& h) { ++h.part; }, [](FrameHeader& h) { ++h.round; },
           [](FrameHeader& h) { ++h.epoch; },
           [](FrameHeader& h) { ++h.offset; }}) {
    FrameHeader other = header;
    change(other);
    EXPECT_NE(FlowOf(PeerId::Shard(0), PeerId::Worker(1), other), flow);
  }
}

// A coordinator whose clock is ahead by `offset`. It answers each message at
// once, or later if the test wants.
class TracerTest : public testing::Test {
 protected:
  // Answers the member's questions until it asks no more.
  void AnswerAll(absl::Duration offset) {
    while (!sent_.empty()) {
      const auto* question = std::get_if<ClockQuestion>(&sent_.front());
      if (question == nullptr) return;
      const ClockAnswer answer{question->trace, question->asked,
                               SteadyNow() + offset};
      sent_.erase(sent_.begin());
      tracer_.OnMessage(answer);
    }
  }

  std::vector<MemberMessage> sent_;  // Messages of the member.
  Tracer tracer_{
      [this](const MemberMessage& message) { sent_.push_back(message); }};
};

TEST_F(TracerTest, SendsItsSpansAndWhatItKnowsOfTheClock) {
  const absl::Duration offset = absl::Hours(5);
  EXPECT_FALSE(tracer_.OnMessage(AskToLeave()));
  EXPECT_TRUE(tracer_.OnMessage(TraceOrder{7, 3, 5, 1'000'000}));
  AnswerAll(offset);
  EXPECT_THAT(sent_, IsEmpty());
  const std::vector<Span> spans(kTracePartSpansMax + 1, SpanOfRound(4));
  tracer_.recorder().Add(spans);

  tracer_.OnMessage(TraceEnd{6});  // An earlier trace.
  EXPECT_THAT(sent_, IsEmpty());
  tracer_.OnMessage(TraceEnd{7});
  AnswerAll(offset);
  ASSERT_EQ(sent_.size(), 2u);
  const auto& first = std::get<TracePart>(sent_[0]);
  const auto& last = std::get<TracePart>(sent_[1]);
  EXPECT_EQ(first.trace, 7u);
  EXPECT_EQ(std::ssize(first.spans), kTracePartSpansMax);
  EXPECT_FALSE(first.is_last);
  EXPECT_EQ(last.spans.size(), 1u);
  EXPECT_TRUE(last.is_last);
  ASSERT_EQ(last.clock.size(), 2u);
  for (const ClockSample& sample : last.clock) {
    EXPECT_LE(absl::AbsDuration(sample.offset - offset), sample.error);
    EXPECT_LT(sample.error, absl::Seconds(1));
  }
  EXPECT_LT(last.clock[0].at, last.clock[1].at);
}

TEST_F(TracerTest, TheOrderOfOtherStepsAsksNoQuestions) {
  tracer_.OnMessage(TraceOrder{7, 0, kStepMax, 100});
  AnswerAll(absl::ZeroDuration());
  tracer_.OnMessage(TraceOrder{7, 3, 5, 100});
  EXPECT_THAT(sent_, IsEmpty());
  EXPECT_FALSE(tracer_.recorder().Covers(2));
  EXPECT_TRUE(tracer_.recorder().Covers(3));
}

TEST_F(TracerTest, SpansThatNobodyWaitsForAreDropped) {
  for (const bool breaks : {false, true}) {
    tracer_.OnMessage(TraceOrder{7, 3, 5, 100});
    AnswerAll(absl::ZeroDuration());
    const Span span = SpanOfRound(4);
    tracer_.recorder().Add({&span, 1});
    if (breaks) {
      tracer_.Drop();
    } else {
      tracer_.OnMessage(TraceEnd{7, /*drops=*/true});
    }
    EXPECT_FALSE(tracer_.recorder().is_on());
    tracer_.OnMessage(TraceEnd{7});
    EXPECT_THAT(sent_, IsEmpty());
  }
}

TEST_F(TracerTest, ANewOrderEndsTheLastTrace) {
  tracer_.OnMessage(TraceOrder{7, 3, 5, 100});
  const Span span = SpanOfRound(4);
  tracer_.recorder().Add({&span, 1});
  tracer_.OnMessage(TraceEnd{7});
  sent_.clear();  // The session breaks.
  tracer_.OnMessage(TraceOrder{8, 9, 9, 100});
  AnswerAll(absl::ZeroDuration());
  tracer_.OnMessage(TraceEnd{8});
  AnswerAll(absl::ZeroDuration());
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_THAT(std::get<TracePart>(sent_[0]).spans, IsEmpty());
}

TEST(OnCoordinatorClockTest, DriftIsSpreadBetweenTheTwoSamples) {
  EXPECT_EQ(OnCoordinatorClock(At(5), {}), At(5));
  const ClockSample one = {At(10), absl::Milliseconds(100), {}};
  EXPECT_EQ(OnCoordinatorClock(At(50), {one}), At(150));
  const ClockSample two = {At(30), absl::Milliseconds(120), {}};
  EXPECT_EQ(OnCoordinatorClock(At(0), {one, two}), At(100));
  EXPECT_EQ(OnCoordinatorClock(At(20), {one, two}), At(130));
  EXPECT_EQ(OnCoordinatorClock(At(40), {one, two}), At(160));
}

}  // namespace
}  // namespace nereus
