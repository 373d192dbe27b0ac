#ifndef NEREUS_COMMON_RPC_MESSAGES_H_
#define NEREUS_COMMON_RPC_MESSAGES_H_

#include "absl/status/statusor.h"
#include "common/protocol/membership.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/plan.pb.h"

namespace nereus {

// The plain structs of common/protocol/membership.h as Protobuf messages and
// back. Whatever comes back has passed the structs' own checks: enums are
// known, counts in range, layers and routes fit together.
//
// Errors of all From...: kInvalidArgument, naming the field and its value.

v1::JoinRequest ToProto(const JoinRequest& request);
absl::StatusOr<JoinRequest> FromProto(const v1::JoinRequest& message);

v1::Welcome ToProto(const Welcome& welcome);
absl::StatusOr<Welcome> FromProto(const v1::Welcome& message);

v1::HeartbeatRequest ToProto(const Heartbeat& heartbeat);
absl::StatusOr<Heartbeat> FromProto(const v1::HeartbeatRequest& message);

v1::HeartbeatResponse ToProto(const JobVerdict& verdict);
absl::StatusOr<JobVerdict> FromProto(const v1::HeartbeatResponse& message);

v1::Member ToProto(PeerId peer);
absl::StatusOr<PeerId> FromProto(const v1::Member& message);

v1::GetStatusResponse ToProto(const JobStatus& status);
absl::StatusOr<JobStatus> FromProto(const v1::GetStatusResponse& message);

}  // namespace nereus

#endif  // NEREUS_COMMON_RPC_MESSAGES_H_
