#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/peer.h"
#include "proto/plan.pb.h"

namespace nereus {

// Jobs and their parts as Protobuf messages and back. Whatever comes back has
// passed the structs' own checks: enums are known, counts in range, layers and
// routes fit together.
//
// Errors of all From...: kInvalidArgument, naming the field and its value.

v1::Member ToProto(PeerId peer);
absl::StatusOr<PeerId> FromProto(const v1::Member& message);

v1::LayerSpec ToProto(const LayerSpec& layer);
absl::StatusOr<LayerSpec> FromProto(const v1::LayerSpec& message);
absl::StatusOr<std::vector<LayerSpec>> LayersFromProto(
    const google::protobuf::RepeatedPtrField<v1::LayerSpec>& messages);

v1::StepVerdict ToProto(const StepVerdict& verdict);
StepVerdict FromProto(const v1::StepVerdict& message);

v1::ShardServers ToProto(const ShardServers& servers);
ShardServers FromProto(const v1::ShardServers& message);

// With the reasons for the routes, by layer.
v1::Job ToProto(const Job& job,
                absl::Span<const RouteExplanation> explanations);
absl::StatusOr<JobPtr> FromProto(const v1::Job& message,
                                 std::vector<RouteExplanation>& explanations);

}  // namespace nereus
