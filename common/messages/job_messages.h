#pragma once

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/messages/codec.h"
#include "common/plan/planner.h"
#include "common/protocol/activity.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"
#include "proto/coordinator.pb.h"
#include "proto/plan.pb.h"

// Lists of fields (Codec) that several messages share: members, layers, routes,
// jobs, and parts of them. A list checks only what its comment says.

namespace nereus {

// A number in the middle of each enum that has more than two. If one of the two
// enums got a new value before it, their numbers would match no longer.
static_assert(static_cast<int>(LayerKind::kEmbedding) + 1 ==
              v1::LayerSpec::KIND_EMBEDDING);
static_assert(static_cast<int>(Scheme::kFactor) + 1 ==
              v1::Route::SCHEME_FACTOR);
static_assert(static_cast<int>(JobState::kFinished) + 1 ==
              v1::JOB_STATE_FINISHED);

// Checks that the rank is in range.
void Fields(Codec& c, PeerId& peer);
void Fields(Codec& c, std::pair<PeerId, PeerId>& link);
void Fields(Codec& c, Setting& setting);
void Fields(Codec& c, LayerSpec& layer);
void Fields(Codec& c, StepVerdict& verdict);
void Fields(Codec& c, ShardServers& servers);
// Checks that the host's number is in range.
void Fields(Codec& c, EpochMember& member);
void Fields(Codec& c, HostClaim& claim);
void Fields(Codec& c, Stall& stall);
void Fields(Codec& c, PhaseTimes& times);
void Fields(Codec& c, BusyLink& link);
void Fields(Codec& c, Activity& activity);
// Checks that no more is done than there is to do.
void Fields(Codec& c, LongWork& work);
void Fields(Codec& c, Measured& measured);

// A route, and why.
struct ReasonedRoute {
  Route route;
  RouteExplanation why;
};
// Checks the wire type.
void Fields(Codec& c, ReasonedRoute& route);

// Copies the field "job": a job, and the explanation of each layer's route. A
// job that is read is checked and completed by MakeJob.
void CopyJob(Codec& c, JobPtr& job,
             std::vector<RouteExplanation>& explanations);

// Checks that there is exactly one entry for each worker, leaver and server of
// the job. If a member had two entries, it would have two addresses. If it had
// none, its peers would wait for it for ever.
absl::Status CheckEpochMembers(const std::vector<EpochMember>& members,
                               const Job& job);

// Convert the id of a member.
inline v1::Member ToProto(PeerId peer) { return Encoded<v1::Member>(peer); }
inline absl::StatusOr<PeerId> FromProto(const v1::Member& message) {
  return Decoded<PeerId>(message);
}

}  // namespace nereus
