#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/peer.h"
#include "proto/plan.pb.h"

namespace nereus {

// Conversion of jobs and their parts to Protobuf messages and back. Messages
// may be hostile. A FromProto that returns a StatusOr checks its message: enums
// are known, counts are in range, layers and routes fit together. The others
// return their struct (StepVerdict, ShardServers) unchecked, and MakeJob checks
// it as part of a job.
//
// Errors of all: kInvalidArgument, naming the field and its value.

// Converts the id of a member. FromProto checks role and rank.
v1::Member ToProto(PeerId peer);
absl::StatusOr<PeerId> FromProto(const v1::Member& message);

// Converts layers. LayersFromProto also limits their number. It does not check
// that they form a model: call ValidateLayers.
v1::LayerSpec ToProto(const LayerSpec& layer);
absl::StatusOr<LayerSpec> FromProto(const v1::LayerSpec& message);
absl::StatusOr<std::vector<LayerSpec>> LayersFromProto(
    const google::protobuf::RepeatedPtrField<v1::LayerSpec>& messages);

// Converts verdicts, unchecked.
v1::StepVerdict ToProto(const StepVerdict& verdict);
StepVerdict FromProto(const v1::StepVerdict& message);

// Converts the servers of a shard, unchecked.
v1::ShardServers ToProto(const ShardServers& servers);
ShardServers FromProto(const v1::ShardServers& message);

// Converts a job together with the explanation of each layer's route.
v1::Job ToProto(const Job& job,
                absl::Span<const RouteExplanation> explanations);
// Returns the job, checked by MakeJob, and sets `explanations` to those of its
// layers' routes.
absl::StatusOr<JobPtr> FromProto(const v1::Job& message,
                                 std::vector<RouteExplanation>& explanations);

}  // namespace nereus
