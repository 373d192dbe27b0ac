#pragma once

#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Convert the messages of gatherings. FromProto does not check the length of a
// value: the coordinator does. Errors of FromProto: kInvalidArgument, naming
// the field and its value.
v1::Gather ToProto(const Gather& gather);
absl::StatusOr<Gather> FromProto(const v1::Gather& message);
v1::Gathered ToProto(const Gathered& gathered);
absl::StatusOr<Gathered> FromProto(const v1::Gathered& message);

}  // namespace nereus
