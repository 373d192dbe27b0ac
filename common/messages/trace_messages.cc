#include "common/messages/trace_messages.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "common/messages/job_messages.h"

namespace nereus {
namespace {

// Largest time and duration: about 146 years, so that sums do not overflow.
constexpr int64_t kNanosecondsMax = INT64_MAX / 2;

// Largest number of lost spans, so that sums do not overflow.
constexpr int64_t kLostMax = int64_t{1} << 40;

// Largest number of comparisons of the clocks of one member.
constexpr int64_t kComparisonsMax = 2;

// Copies a time in nanoseconds. `Number`: type of the field.
template <typename Number>
void CopyNanos(Codec& c, const char* name, absl::Time& time) {
  Number nanos = c.reads() ? 0 : static_cast<Number>(absl::ToUnixNanos(time));
  c(name, nanos);
  c.Verify([&] {
    return CheckRange("a time in nanoseconds", static_cast<int64_t>(nanos), 0,
                      kNanosecondsMax);
  });
  if (c.reads()) time = absl::FromUnixNanos(static_cast<int64_t>(nanos));
}

// Copies a duration of `least` to kNanosecondsMax nanoseconds.
void CopyNanos(Codec& c, const char* name, int64_t least,
               absl::Duration& duration) {
  int64_t nanos = absl::ToInt64Nanoseconds(duration);
  c(name, nanos);
  c.Verify([&] {
    return CheckRange("a duration in nanoseconds", nanos, least,
                      kNanosecondsMax);
  });
  if (c.reads()) duration = absl::Nanoseconds(nanos);
}

void CopyLost(Codec& c, int64_t& lost) {
  c("lost", lost);
  c.Verify([&] {
    return CheckRange("the number of lost spans", lost, 0, kLostMax);
  });
}

}  // namespace

static void Fields(Codec& c, Span& span) {
  auto kind = static_cast<uint32_t>(span.kind);
  auto frame = static_cast<uint32_t>(span.frame);
  absl::Duration duration = span.end - span.begin;
  c("kind", kind);
  c("layer", span.layer);
  c("chunk", span.chunk);
  c("round", span.round);
  c("peer", span.peer);
  if (span.peer.has_value()) {
    c("frame", frame);
    c("bytes", span.bytes);
    c("flow", span.flow);
  }
  CopyNanos<uint64_t>(c, "begin", span.begin);
  CopyNanos(c, "duration", 0, duration);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(CheckRange("a span's kind", kind, kSpanKindMin, kSpanKindMax));
    NEREUS_TRY(CheckAtLeast("a span's layer", span.layer, -1));
    NEREUS_TRY(CheckAtLeast("a span's chunk", span.chunk, -1));
    NEREUS_TRY(
        CheckRange("a span's round", span.round, kInitialRound, kStepMax));
    NEREUS_TRY(CheckRange("a span's frame", frame, 0, UINT8_MAX));
    return CheckAtLeast("a span's bytes", span.bytes, 0);
  });
  if (!c.reads()) return;
  span.kind = static_cast<SpanKind>(kind);
  span.frame = static_cast<FrameKind>(frame);
  span.end = span.begin + duration;
}

static void Fields(Codec& c, ClockSample& sample) {
  CopyNanos<uint64_t>(c, "at", sample.at);
  CopyNanos(c, "offset", -kNanosecondsMax, sample.offset);
  CopyNanos(c, "error", 0, sample.error);
}

void Fields(Codec& c, ClockQuestion& question) {
  c("trace", question.trace);
  CopyNanos<int64_t>(c, "asked", question.asked);
}

void Fields(Codec& c, ClockAnswer& answer) {
  c("trace", answer.trace);
  CopyNanos<int64_t>(c, "asked", answer.asked);
  CopyNanos<int64_t>(c, "answered", answer.answered);
}

void Fields(Codec& c, TraceOrder& order) {
  c("trace", order.trace);
  c("first_step", order.first_step);
  c("last_step", order.last_step);
  c("spans_max", order.spans_max);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(
        CheckRange("the first step of a trace", order.first_step, 0, kStepMax));
    NEREUS_TRY(CheckRange("the last step of a trace", order.last_step,
                          order.first_step, kStepMax));
    return CheckRange("the number of spans of a trace", order.spans_max, 1,
                      kTraceSpansMax);
  });
}

void Fields(Codec& c, TracePart& part) {
  c("trace", part.trace);
  c.AtMost("spans", kTracePartSpansMax);
  c("spans", part.spans);
  c("is_last", part.is_last);
  CopyLost(c, part.lost);
  c.AtMost("clock", kComparisonsMax);
  c("clock", part.clock);
}

static void Fields(Codec& c, MemberTrace& member) {
  c("member", member.member);
  c("name", member.name);
  c("host", member.host);
  CopyLost(c, member.lost);
  c.AtMost("clock", kComparisonsMax);
  c("clock", member.clock);
}

static void CopyFacts(Codec& c, JobTrace& trace,
                      std::vector<RouteExplanation>& explanations) {
  c("job_name", trace.job_name);
  CopyJob(c, trace.job, explanations);
  c("first_step", trace.first_step);
  c("last_step", trace.last_step);
  c("measured", trace.measured);
  c("members", trace.members);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(CheckRange("the first step", trace.first_step, 0, kStepMax));
    return CheckRange("the last step", trace.last_step, trace.first_step,
                      trace.first_step + kTraceStepsMax);
  });
}

v1::TraceReply::TraceBegun ToProto(const JobTrace& trace,
                                   std::vector<RouteExplanation> explanations) {
  v1::TraceReply::TraceBegun message;
  Codec codec(&message);
  CopyFacts(codec, const_cast<JobTrace&>(trace), explanations);
  return message;
}

absl::StatusOr<JobTrace> FromProto(const v1::TraceReply::TraceBegun& message) {
  JobTrace trace;
  std::vector<RouteExplanation> explanations;
  absl::Status status;
  Codec codec(message, &status);
  CopyFacts(codec, trace, explanations);
  if (!status.ok()) return status;
  return trace;
}

std::string FormatTraceFacts(const JobTrace& trace) {
  return ToProto(trace, std::vector<RouteExplanation>(trace.job->routes.size()))
      .SerializeAsString();
}

absl::StatusOr<JobTrace> ParseTraceFacts(const std::string& bytes) {
  v1::TraceReply::TraceBegun message;
  if (message.ParseFromString(bytes)) return FromProto(message);
  return InvalidArgumentError("the description of the job is damaged");
}

}  // namespace nereus
