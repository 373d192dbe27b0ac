#pragma once

#include "common/base/status.h"
#include "common/protocol/activity.h"
#include "common/protocol/membership.h"
#include "proto/coordinator.pb.h"

namespace nereus {

// Convert what a member has done. FromProto checks only the id of the peer of
// the busiest link.
v1::PhaseTimes ToProto(const PhaseTimes& times);
PhaseTimes FromProto(const v1::PhaseTimes& message);
v1::Activity ToProto(const Activity& activity);
absl::StatusOr<Activity> FromProto(const v1::Activity& message);

// Convert long work. Errors: kInvalidArgument, an unknown kind, or `done` is
// not in [0, total].
v1::LongWork ToProto(const LongWork& work);
absl::StatusOr<LongWork> FromProto(const v1::LongWork& message);

// Convert measurements. FromProto checks nothing: the coordinator does.
v1::Measured ToProto(const Measured& measured);
Measured FromProto(const v1::Measured& message);

}  // namespace nereus
