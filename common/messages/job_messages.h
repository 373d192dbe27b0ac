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
// may be hostile. FromProto of a job checks the whole job (MakeJob), so the
// caller can use the result without further checks. FromProto of a part checks
// only what its comment says; MakeJob checks the rest.
//
// All errors are kInvalidArgument. The message names the field, and its value
// if it has one.

// Convert the id of a member. FromProto checks that the role is known and that
// the rank is in range.
v1::Member ToProto(PeerId peer);
absl::StatusOr<PeerId> FromProto(const v1::Member& message);

// Convert layers. FromProto checks only that the kind is known. LayersFromProto
// also refuses more than kLayersMax layers. A caller that needs a valid model
// must call ValidateLayers.
v1::LayerSpec ToProto(const LayerSpec& layer);
absl::StatusOr<LayerSpec> FromProto(const v1::LayerSpec& message);
absl::StatusOr<std::vector<LayerSpec>> LayersFromProto(
    const google::protobuf::RepeatedPtrField<v1::LayerSpec>& messages);

// Convert verdicts. FromProto checks nothing.
v1::StepVerdict ToProto(const StepVerdict& verdict);
StepVerdict FromProto(const v1::StepVerdict& message);

// Convert the servers of a shard. FromProto checks nothing.
v1::ShardServers ToProto(const ShardServers& servers);
ShardServers FromProto(const v1::ShardServers& message);

// Convert a route with its explanation. RouteFromProto checks only the enums.
v1::Route RouteToProto(const Route& route, const RouteExplanation& explanation);
absl::StatusOr<Route> RouteFromProto(const v1::Route& message);
RouteExplanation ExplanationFromProto(const v1::Route& message);

// Converts a job together with the explanation of each layer's route.
v1::Job ToProto(const Job& job,
                absl::Span<const RouteExplanation> explanations);
// Returns the job of a message, checked and completed by MakeJob. Appends the
// explanation of each route to `explanations`; after an error some or all of
// them may be missing.
absl::StatusOr<JobPtr> FromProto(const v1::Job& message,
                                 std::vector<RouteExplanation>& explanations);

}  // namespace nereus
