#pragma once

#include <string>

#include "common/protocol/job_options.h"

namespace nereus {

// Logs the options of the job that a worker has joined. Warns if the caller
// runs the optimizer, an optimizer with these options has state, and the caller
// has bound no state (LayerBinding::state). A worker that joins later would
// then begin with other state. `keeps_state`: true if the caller has bound
// state.
void LogJoined(const std::string& job, const JobOptions& options,
               bool keeps_state);

}  // namespace nereus
