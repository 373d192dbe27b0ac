#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Conversion of the messages of common/protocol/membership.h to Protobuf and
// back. Messages from the network may be hostile. A FromProto checks its
// message: enums are known, counts are in range, and an epoch has one entry for
// each of its members. The receiver checks that numbers fit the job.
//
// Errors of all FromProto: kInvalidArgument, naming the field and its value.

// Converts a message of a member. An empty or unknown message is an error.
v1::MemberMessage ToProto(const MemberMessage& message);
absl::StatusOr<MemberMessage> FromProto(const v1::MemberMessage& message);

// Converts a message of the coordinator. An empty or unknown message is an
// error.
v1::CoordinatorMessage ToProto(const CoordinatorMessage& message);
absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& message);

// Converts a host claim. The coordinator checks the texts.
v1::HostClaim ToProto(const HostClaim& claim);
HostClaim FromProto(const v1::HostClaim& message);

// Converts one member of an epoch.
v1::EpochStart::EpochMember ToProto(const EpochMember& each);
// Returns the members of `job`'s epoch: exactly one entry for each of its
// workers, workers that have left, and servers.
absl::StatusOr<std::vector<EpochMember>> EpochMembersFromProto(
    const google::protobuf::RepeatedPtrField<v1::EpochStart::EpochMember>&
        epoch_members,
    const Job& job);

}  // namespace nereus
