#pragma once

#include "common/base/status.h"
#include "common/messages/codec.h"
#include "common/protocol/membership.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Conversion of the messages of common/protocol/membership.h to Protobuf and
// back. Messages from the network may be hostile. Each FromProto checks at
// least that enums are known, that ranks are in range, that a model has at most
// kLayersMax layers, and that an epoch has one entry for each of its members.
// The receiver must check all other numbers.
//
// Errors of FromProto: kInvalidArgument, naming the field and its value; a
// message that is empty or of an unknown kind.
v1::MemberMessage ToProto(const MemberMessage& message);
absl::StatusOr<MemberMessage> FromProto(const v1::MemberMessage& message);
v1::CoordinatorMessage ToProto(const CoordinatorMessage& message);
absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& message);

// Lists of the fields of messages that the coordinator also keeps in its state.
void Fields(Codec& c, JoinRequest& request);
void Fields(Codec& c, Gathered& gathered);
void Fields(Codec& c, LobbyGathered& gathered);
void Fields(Codec& c, TurnRule& rule);

}  // namespace nereus
