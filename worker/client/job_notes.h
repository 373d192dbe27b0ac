#pragma once

#include <string>

#include "common/protocol/job_options.h"

namespace nereus {

// Logs which options are in force in the job that a worker has joined; and
// warns of an optimizer that may have state, where the worker says that it
// keeps none (LayerBinding::state).
void LogJoined(const std::string& job, const JobOptions& options,
               bool keeps_state);

}  // namespace nereus
