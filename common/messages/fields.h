#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "google/protobuf/duration.pb.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Returns `text` in a form for a Protobuf string, which must be UTF-8. If
// `text` has a byte that is not ASCII, returns it with C escapes ("\xc3");
// otherwise returns it unchanged.
std::string TextField(absl::string_view text);

// Returns OK if value >= minimum; else kInvalidArgument, with the name of the
// field and both values.
absl::Status CheckAtLeast(absl::string_view field, int64_t value,
                          int64_t minimum);

// Convert durations. If a duration is longer than 10,000 years, which is
// Protobuf's limit, return the limit instead.
google::protobuf::Duration DurationToProto(absl::Duration duration);
absl::Duration DurationFromProto(const google::protobuf::Duration& message);

// Convert stalls. StallFromProto checks nothing.
v1::Stall StallToProto(const Stall& stall);
Stall StallFromProto(const v1::Stall& message);

}  // namespace nereus
