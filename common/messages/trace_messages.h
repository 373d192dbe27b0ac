#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/codec.h"
#include "common/plan/planner.h"
#include "common/protocol/membership.h"
#include "common/protocol/trace.h"
#include "proto/admin.pb.h"

namespace nereus {

// Lists of the fields of a trace's messages. They check all fields, as messages
// may be hostile.
void Fields(Codec& c, ClockQuestion& question);
void Fields(Codec& c, ClockAnswer& answer);
void Fields(Codec& c, TraceOrder& order);
void Fields(Codec& c, TracePart& part);

// Converts the first reply to a TraceRequest. `explanations`: reason for the
// route of each layer. FromProto returns a trace whose members have no spans.
// Errors: kInvalidArgument, naming the field and its value.
v1::TraceReply::TraceBegun ToProto(const JobTrace& trace,
                                   std::vector<RouteExplanation> explanations);
absl::StatusOr<JobTrace> FromProto(const v1::TraceReply::TraceBegun& message);

// Convert all of a trace but the spans, for a file. Errors of ParseTraceFacts:
// kInvalidArgument.
std::string FormatTraceFacts(const JobTrace& trace);
absl::StatusOr<JobTrace> ParseTraceFacts(const std::string& bytes);

}  // namespace nereus
