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

// Returns `text` for a Protobuf string, which must be UTF-8: if `text` has
// bytes that are not ASCII, it is escaped.
std::string TextField(absl::string_view text);

// Returns OK if value >= minimum; else kInvalidArgument, with the name of the
// field and both values.
absl::Status CheckAtLeast(absl::string_view field, int64_t value,
                          int64_t minimum);

// Converts durations. A duration beyond 10,000 years, Protobuf's limit, becomes
// the limit.
google::protobuf::Duration DurationToProto(absl::Duration duration);
absl::Duration DurationFromProto(const google::protobuf::Duration& message);

// Converts stalls.
v1::Stall StallToProto(const Stall& stall);
Stall StallFromProto(const v1::Stall& message);

}  // namespace nereus
