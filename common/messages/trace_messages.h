#pragma once

#include <string>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/planner.h"
#include "common/protocol/membership.h"
#include "common/protocol/trace.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Convert the messages of a trace. Each FromProto checks all fields, as
// messages may be hostile. Errors: kInvalidArgument, naming the field and its
// value.
v1::ClockQuestion ToProto(const ClockQuestion& question);
absl::StatusOr<ClockQuestion> FromProto(const v1::ClockQuestion& message);
v1::ClockAnswer ToProto(const ClockAnswer& answer);
absl::StatusOr<ClockAnswer> FromProto(const v1::ClockAnswer& message);
v1::TraceOrder ToProto(const TraceOrder& order);
absl::StatusOr<TraceOrder> FromProto(const v1::TraceOrder& message);
v1::TracePart ToProto(const TracePart& part);
absl::StatusOr<TracePart> FromProto(const v1::TracePart& message);

// Converts the first reply to a TraceRequest. `explanations`: reason for the
// route of each layer. FromProto returns a trace whose members have no spans.
v1::TraceReply::TraceBegun ToProto(
    const JobTrace& trace, absl::Span<const RouteExplanation> explanations);
absl::StatusOr<JobTrace> FromProto(const v1::TraceReply::TraceBegun& message);

// Convert all of a trace but the spans, for a file. Errors of ParseTraceFacts:
// kInvalidArgument.
std::string FormatTraceFacts(const JobTrace& trace);
absl::StatusOr<JobTrace> ParseTraceFacts(const std::string& bytes);

}  // namespace nereus
