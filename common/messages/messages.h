#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/membership.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// The plain structs of common/protocol/membership.h as Protobuf messages and
// back. Whatever comes back has passed the structs' own checks: enums are
// known, counts in range, an epoch has a each for each of its members.
//
// Errors of all From...: kInvalidArgument, naming the field and its value.

v1::MemberMessage ToProto(const MemberMessage& message);
absl::StatusOr<MemberMessage> FromProto(const v1::MemberMessage& message);

v1::CoordinatorMessage ToProto(const CoordinatorMessage& message);
absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& message);

v1::EpochStart::EpochMember ToProto(const EpochMember& each);
// The epoch_members of `job`'s epoch: one for each of its members.
absl::StatusOr<std::vector<EpochMember>> EpochMembersFromProto(
    const google::protobuf::RepeatedPtrField<v1::EpochStart::EpochMember>&
        epoch_members,
    const Job& job);

}  // namespace nereus
