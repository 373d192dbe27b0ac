#pragma once

#include <string>

#include "common/protocol/job_options.h"

namespace nereus {

// Logs the options of the job that a worker has joined. Warns if the worker
// runs the job's optimizer, this optimizer can have state, and `keeps_state` is
// false, because the caller has bound no state (LayerBinding::state). A worker
// that joins later would then begin with other state.
void LogJoined(const std::string& job, const JobOptions& options,
               bool keeps_state);

}  // namespace nereus
