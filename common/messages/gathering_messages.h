#pragma once

#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Convert the messages of gatherings. FromProto does not check the length of a
// value, nor the number of values: the coordinator does. Errors of FromProto:
// kInvalidArgument, naming the field and its value.
v1::Gather ToProto(const Gather& gather);
absl::StatusOr<Gather> FromProto(const v1::Gather& message);
v1::Gathered ToProto(const Gathered& gathered);
absl::StatusOr<Gathered> FromProto(const v1::Gathered& message);
v1::LobbyGather ToProto(const LobbyGather& gather);
absl::StatusOr<LobbyGather> FromProto(const v1::LobbyGather& message);
v1::LobbyGathered ToProto(const LobbyGathered& gathered);
absl::StatusOr<LobbyGathered> FromProto(const v1::LobbyGathered& message);

}  // namespace nereus
