#pragma once

#include <string>

#include "common/base/status.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Encodes the state that a coordinator must find again when it is restarted.
// JobStore writes these bytes to disk. REQUIRES: the state has a job.
std::string EncodeState(const CoordinatorState& state);

// Decodes a state and checks it. Errors: kInvalidArgument, with the field and
// its value.
absl::StatusOr<CoordinatorState> DecodeState(const std::string& bytes);

}  // namespace nereus
