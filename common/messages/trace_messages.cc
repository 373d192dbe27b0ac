#include "common/messages/trace_messages.h"

#include <cstdint>
#include <vector>

#include "common/messages/activity_messages.h"
#include "common/messages/fields.h"
#include "common/messages/job_messages.h"

namespace nereus {
namespace {

// Largest time and duration: about 146 years, so that sums do not overflow.
constexpr int64_t kNanosecondsMax = INT64_MAX / 2;

// Largest number of lost spans, so that sums do not overflow.
constexpr int64_t kLostMax = int64_t{1} << 40;

// Returns an error if `value` is not in [least, most].
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgumentError(field, " is ", value, ", must be from ", least,
                              " to ", most);
}

v1::Span SpanToProto(const Span& span) {
  v1::Span message;
  message.set_kind(static_cast<uint32_t>(span.kind));
  message.set_layer(span.layer);
  message.set_chunk(span.chunk);
  message.set_round(span.round);
  if (span.peer.has_value()) {
    *message.mutable_peer() = ToProto(*span.peer);
    message.set_frame(static_cast<uint32_t>(span.frame));
    message.set_bytes(span.bytes);
    message.set_flow(span.flow);
  }
  message.set_begin(static_cast<uint64_t>(absl::ToUnixNanos(span.begin)));
  message.set_duration(absl::ToInt64Nanoseconds(span.end - span.begin));
  return message;
}

absl::StatusOr<Span> SpanFromProto(const v1::Span& message) {
  Span span;
  NEREUS_TRY(
      CheckRange("a span's kind", message.kind(), kSpanKindMin, kSpanKindMax));
  NEREUS_TRY(CheckRange("a span's layer", message.layer(), -1, INT32_MAX));
  NEREUS_TRY(CheckRange("a span's chunk", message.chunk(), -1, INT32_MAX));
  NEREUS_TRY(
      CheckRange("a span's round", message.round(), kInitialRound, kStepMax));
  NEREUS_TRY(CheckRange("a span's frame", message.frame(), 0, UINT8_MAX));
  NEREUS_TRY(CheckAtLeast("a span's bytes", message.bytes(), 0));
  NEREUS_TRY(CheckRange("a span's begin", static_cast<int64_t>(message.begin()),
                        0, kNanosecondsMax));
  NEREUS_TRY(
      CheckRange("a span's duration", message.duration(), 0, kNanosecondsMax));
  span.kind = static_cast<SpanKind>(message.kind());
  span.layer = message.layer();
  span.chunk = message.chunk();
  span.round = message.round();
  if (message.has_peer()) {
    span.peer = NEREUS_TRY(FromProto(message.peer()));
    span.frame = static_cast<FrameKind>(message.frame());
    span.bytes = message.bytes();
    span.flow = message.flow();
  }
  span.begin = absl::FromUnixNanos(static_cast<int64_t>(message.begin()));
  span.end = span.begin + absl::Nanoseconds(message.duration());
  return span;
}

v1::ClockSample SampleToProto(const ClockSample& sample) {
  v1::ClockSample message;
  message.set_at(static_cast<uint64_t>(absl::ToUnixNanos(sample.at)));
  message.set_offset(absl::ToInt64Nanoseconds(sample.offset));
  message.set_error(absl::ToInt64Nanoseconds(sample.error));
  return message;
}

absl::StatusOr<std::vector<ClockSample>> SamplesFromProto(
    const google::protobuf::RepeatedPtrField<v1::ClockSample>& messages) {
  NEREUS_TRY(
      CheckRange("the number of comparisons of clocks", messages.size(), 0, 2));
  std::vector<ClockSample> samples;
  for (const v1::ClockSample& message : messages) {
    const auto at = static_cast<int64_t>(message.at());
    NEREUS_TRY(CheckRange("a member's time", at, 0, kNanosecondsMax));
    NEREUS_TRY(CheckRange("an offset of clocks", message.offset(),
                          -kNanosecondsMax, kNanosecondsMax));
    NEREUS_TRY(CheckRange("the error of an offset of clocks", message.error(),
                          0, kNanosecondsMax));
    samples.push_back({absl::FromUnixNanos(at),
                       absl::Nanoseconds(message.offset()),
                       absl::Nanoseconds(message.error())});
  }
  return samples;
}

}  // namespace

v1::ClockQuestion ToProto(const ClockQuestion& question) {
  v1::ClockQuestion message;
  message.set_trace(question.trace);
  message.set_asked(absl::ToUnixNanos(question.asked));
  return message;
}

absl::StatusOr<ClockQuestion> FromProto(const v1::ClockQuestion& message) {
  NEREUS_TRY(
      CheckRange("a member's time", message.asked(), 0, kNanosecondsMax));
  return ClockQuestion{message.trace(), absl::FromUnixNanos(message.asked())};
}

v1::ClockAnswer ToProto(const ClockAnswer& answer) {
  v1::ClockAnswer message;
  message.set_trace(answer.trace);
  message.set_asked(absl::ToUnixNanos(answer.asked));
  message.set_answered(absl::ToUnixNanos(answer.answered));
  return message;
}

absl::StatusOr<ClockAnswer> FromProto(const v1::ClockAnswer& message) {
  NEREUS_TRY(
      CheckRange("a member's time", message.asked(), 0, kNanosecondsMax));
  NEREUS_TRY(CheckRange("the coordinator's time", message.answered(), 0,
                        kNanosecondsMax));
  return ClockAnswer{message.trace(), absl::FromUnixNanos(message.asked()),
                     absl::FromUnixNanos(message.answered())};
}

v1::TraceOrder ToProto(const TraceOrder& order) {
  v1::TraceOrder message;
  message.set_trace(order.trace);
  message.set_first_step(order.first_step);
  message.set_last_step(order.last_step);
  message.set_spans_max(order.spans_max);
  return message;
}

absl::StatusOr<TraceOrder> FromProto(const v1::TraceOrder& message) {
  NEREUS_TRY(CheckRange("the first step of a trace", message.first_step(), 0,
                        kStepMax));
  NEREUS_TRY(CheckRange("the last step of a trace", message.last_step(),
                        message.first_step(), kStepMax));
  NEREUS_TRY(CheckRange("the number of spans of a trace", message.spans_max(),
                        1, kTraceSpansMax));
  return TraceOrder{message.trace(), message.first_step(), message.last_step(),
                    message.spans_max()};
}

v1::TracePart ToProto(const TracePart& part) {
  v1::TracePart message;
  message.set_trace(part.trace);
  for (const Span& span : part.spans) *message.add_spans() = SpanToProto(span);
  message.set_is_last(part.is_last);
  message.set_lost(part.lost);
  for (const ClockSample& sample : part.clock) {
    *message.add_clock() = SampleToProto(sample);
  }
  return message;
}

absl::StatusOr<TracePart> FromProto(const v1::TracePart& message) {
  NEREUS_TRY(CheckRange("the number of spans of a message",
                        message.spans_size(), 0, kTracePartSpansMax));
  NEREUS_TRY(
      CheckRange("the number of lost spans", message.lost(), 0, kLostMax));
  TracePart part{message.trace(), {}, message.is_last(), message.lost(), {}};
  part.spans.reserve(static_cast<size_t>(message.spans_size()));
  for (const v1::Span& span : message.spans()) {
    const Span read = NEREUS_TRY(SpanFromProto(span));
    part.spans.push_back(read);
  }
  part.clock = NEREUS_TRY(SamplesFromProto(message.clock()));
  return part;
}

v1::TraceReply::TraceBegun ToProto(
    const JobTrace& trace, absl::Span<const RouteExplanation> explanations) {
  v1::TraceReply::TraceBegun message;
  message.set_job_name(TextField(trace.job_name));
  *message.mutable_job() = ToProto(*trace.job, explanations);
  message.set_first_step(trace.first_step);
  message.set_last_step(trace.last_step);
  if (trace.measured.has_value()) {
    *message.mutable_measured() = ToProto(*trace.measured);
  }
  for (const MemberTrace& member : trace.members) {
    v1::TraceReply::TracedMember* const added = message.add_members();
    *added->mutable_member() = ToProto(member.member);
    added->set_name(TextField(member.name));
    added->set_host(TextField(member.host));
    added->set_lost(member.lost);
    for (const ClockSample& sample : member.clock) {
      *added->add_clock() = SampleToProto(sample);
    }
  }
  return message;
}

absl::StatusOr<JobTrace> FromProto(const v1::TraceReply::TraceBegun& message) {
  JobTrace trace;
  std::vector<RouteExplanation> explanations;
  trace.job_name = message.job_name();
  trace.job = NEREUS_TRY(FromProto(message.job(), explanations));
  trace.first_step = message.first_step();
  trace.last_step = message.last_step();
  NEREUS_TRY(CheckRange("the first step", trace.first_step, 0, kStepMax));
  NEREUS_TRY(CheckRange("the last step", trace.last_step, trace.first_step,
                        trace.first_step + kTraceStepsMax));
  if (message.has_measured()) trace.measured = FromProto(message.measured());
  for (const v1::TraceReply::TracedMember& member : message.members()) {
    MemberTrace& added = trace.members.emplace_back();
    added.member = NEREUS_TRY(FromProto(member.member()));
    added.name = member.name();
    added.host = member.host();
    NEREUS_TRY(
        CheckRange("the number of lost spans", member.lost(), 0, kLostMax));
    added.lost = member.lost();
    added.clock = NEREUS_TRY(SamplesFromProto(member.clock()));
  }
  return trace;
}

std::string FormatTraceFacts(const JobTrace& trace) {
  const std::vector<RouteExplanation> none(trace.job->routes.size());
  return ToProto(trace, none).SerializeAsString();
}

absl::StatusOr<JobTrace> ParseTraceFacts(const std::string& bytes) {
  v1::TraceReply::TraceBegun message;
  if (message.ParseFromString(bytes)) return FromProto(message);
  return InvalidArgumentError("the description of the job is damaged");
}

}  // namespace nereus
