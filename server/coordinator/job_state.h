#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// What a coordinator must find again after it dies, as bytes, and back: what
// JobStore keeps. Errors: kInvalidArgument, with the field and its value.
std::string EncodeState(const CoordinatorState& state);
absl::StatusOr<CoordinatorState> DecodeState(const std::string& bytes);

}  // namespace nereus
