#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/protocol/trace.h"

namespace nereus {

// Returns a trace in the JSON format of Chrome's tracing, which Perfetto opens:
//
//   {"traceEvents": [...], "displayTimeUnit": "ms",
//    "otherData": {"nereus": the facts of the trace, in base64}}
//
// Each member is a process, with a thread for the caller, one for the driver
// and one for the GPU. All times are on the coordinator's clock. Arrows (flow
// events) lead from the gradient that a caller has computed to the event that
// sends it, from each sent frame to the frame that its receiver handles, and
// from a round that is done to the caller's next wait for the layer or, if
// there is none, to its next forward. All members are in one file, because
// Perfetto draws no arrows between files (its FlowTracker belongs to one file
// and machine).
std::string FormatTraceJson(const JobTrace& trace);

// Returns the trace of a text of FormatTraceJson, with times on the
// coordinator's clock: the caller must not convert them again. Of each span it
// has kind, layer, round and times. `text` may be hostile. Errors: kDataLoss,
// with the reason.
absl::StatusOr<JobTrace> ParseTraceJson(absl::string_view text);

}  // namespace nereus
