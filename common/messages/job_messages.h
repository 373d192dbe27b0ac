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
// may be hostile. FromProto of a job checks everything (MakeJob): a job that it
// returns is safe to use. FromProto of a part checks only what its comment
// says; the rest is checked with the job.
//
// Errors of all: kInvalidArgument, naming the field and its value.

// Converts the id of a member. FromProto checks that the role is known and that
// the rank is in range.
v1::Member ToProto(PeerId peer);
absl::StatusOr<PeerId> FromProto(const v1::Member& message);

// Converts layers. FromProto checks only that the kind is known, and
// LayersFromProto also limits the number of layers. To check that they form a
// model, call ValidateLayers.
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
// Returns the job, checked by MakeJob. Appends to `explanations` that of each
// route, also if the job is refused.
absl::StatusOr<JobPtr> FromProto(const v1::Job& message,
                                 std::vector<RouteExplanation>& explanations);

}  // namespace nereus
