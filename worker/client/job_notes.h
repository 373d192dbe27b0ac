#pragma once

#include <string>

#include "common/protocol/job_options.h"

namespace nereus {

// Logs the options of the job that a worker has joined. Warns if the worker
// runs the optimizer, the optimizer may have state, and the worker keeps none
// (LayerBinding::state): a worker that joins later would begin with other
// state.
void LogJoined(const std::string& job, const JobOptions& options,
               bool keeps_state);

}  // namespace nereus
