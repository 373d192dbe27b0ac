#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Conversion of the messages of common/protocol/membership.h to Protobuf and
// back. Messages from the network may be hostile. Each FromProto checks at
// least that enums are known, that ranks are in range, that a model has at most
// kLayersMax layers, and that an epoch has one entry for each of its members.
// The receiver must check all other numbers.
//
// Errors of all FromProto: kInvalidArgument, naming the field and its value.

// Convert a message of a member. FromProto refuses a message that is empty or
// of an unknown type.
v1::MemberMessage ToProto(const MemberMessage& message);
absl::StatusOr<MemberMessage> FromProto(const v1::MemberMessage& message);

// Convert a message of the coordinator. FromProto refuses a message that is
// empty or of an unknown type.
v1::CoordinatorMessage ToProto(const CoordinatorMessage& message);
absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& message);

// Convert a host claim. FromProto checks nothing: the coordinator checks the
// texts.
v1::HostClaim ToProto(const HostClaim& claim);
HostClaim FromProto(const v1::HostClaim& message);

// Converts one member of an epoch.
v1::EpochStart::EpochMember ToProto(const EpochMember& each);
// Converts the members of the epoch of `job`. Checks that there is exactly one
// entry for each worker, leaver and server of this epoch.
absl::StatusOr<std::vector<EpochMember>> EpochMembersFromProto(
    const google::protobuf::RepeatedPtrField<v1::EpochStart::EpochMember>&
        epoch_members,
    const Job& job);

}  // namespace nereus
