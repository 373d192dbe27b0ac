#include "tests/testing/some_trace.h"

#include <utility>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

constexpr int kLayer = 1;  // Layer "fc".

// Adds spans of one member.
class Adder {
 public:
  Adder(PeerId member, absl::Duration behind) {
    trace.member = member;
    trace.name = PeerName(member);
    trace.host = "host of " + trace.name;
    trace.clock = {{absl::UnixEpoch(), behind, absl::Microseconds(5)}};
    base_ = absl::UnixEpoch() + absl::Hours(1) - behind;
  }

  // Adds a span of `step` from `begin` to `end`, in milliseconds.
  Span& Add(SpanKind kind, int layer, int64_t step, double begin, double end) {
    Span& span = trace.spans.emplace_back();
    span.kind = kind;
    span.layer = layer;
    span.round = step;
    const absl::Time of_step = base_ + absl::Milliseconds(20) * (step - 10);
    span.begin = of_step + absl::Milliseconds(begin);
    span.end = of_step + absl::Milliseconds(end);
    return span;
  }

  // Adds a frame that is sent, or handled.
  void AddFrame(SpanKind kind, PeerId from, PeerId to, FrameKind frame,
                int64_t step, double begin, double end) {
    Span& span = Add(kind, kLayer, step, begin, end);
    FrameHeader header;
    header.kind = frame;
    header.layer = kLayer;
    header.round = step;
    span.chunk = 0;
    span.peer = kind == SpanKind::kSend ? to : from;
    span.frame = frame;
    span.bytes = 8192;
    span.flow = FlowOf(from, to, header);
  }

  MemberTrace trace;

 private:
  absl::Time base_;  // Begin of step 10.
};

MemberTrace TraceOfWorker(int rank) {
  const PeerId self = PeerId::Worker(rank);
  const PeerId server = PeerId::Shard(0);
  Adder adder(self, rank * absl::Hours(1));
  const double longer = rank;
  for (const int64_t step : {10, 11}) {
    adder.Add(SpanKind::kForward, -1, step, 0, 4 + longer);
    adder.Add(SpanKind::kBackward, kLayer, step, 4 + longer, 6 + longer);
    adder.Add(SpanKind::kEvent, kLayer, step, 6 + longer, 6.5 + longer);
    adder.AddFrame(SpanKind::kSend, self, server, FrameKind::kContribution,
                   step, 6.1 + longer, 6.2 + longer);
    adder.Add(SpanKind::kWait, kLayer, step, 6 + longer, 9 + longer);
    adder.AddFrame(SpanKind::kFrame, server, self, FrameKind::kResult, step,
                   8 + longer, 8.5 + longer);
    adder.Add(SpanKind::kDone, kLayer, step, 8.2 + longer, 8.3 + longer);
  }
  return std::move(adder.trace);
}

MemberTrace TraceOfServer() {
  const PeerId self = PeerId::Shard(0);
  Adder adder(self, absl::ZeroDuration());
  for (const int64_t step : {10, 11}) {
    for (const int rank : {0, 1}) {
      const double later = rank;
      adder.AddFrame(SpanKind::kFrame, PeerId::Worker(rank), self,
                     FrameKind::kContribution, step, 7 + later, 7.5 + later);
      adder.Add(SpanKind::kAdd, kLayer, step, 7.1 + later, 7.2 + later);
    }
    adder.Add(SpanKind::kUpdate, kLayer, step, 8.2, 8.3);
    for (const int rank : {0, 1}) {
      adder.AddFrame(SpanKind::kSend, self, PeerId::Worker(rank),
                     FrameKind::kResult, step, 8.3, 8.4);
    }
  }
  return std::move(adder.trace);
}

}  // namespace

JobTrace SomeTrace() {
  JobTrace trace;
  trace.job_name = "training";
  trace.job = TestJob(2, 1,
                      {VectorLayer("scale", 8),
                       FactorLayer("fc", 64, 32, /*bias=*/true, /*rows=*/4)},
                      {}, Scheme::kServer);
  trace.first_step = 10;
  trace.last_step = 11;
  trace.measured =
      Measured{{{absl::Milliseconds(1), absl::Milliseconds(1)},
                {absl::Milliseconds(3), absl::Milliseconds(2)}},
               absl::Milliseconds(10),
               LinkSpeed{125e6, absl::Microseconds(90), absl::Microseconds(3)},
               5e9};
  trace.members = {TraceOfWorker(0), TraceOfWorker(1), TraceOfServer()};
  return trace;
}

}  // namespace nereus
