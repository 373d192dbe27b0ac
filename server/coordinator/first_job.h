#pragma once

#include "common/protocol/job.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Returns the job with which the first epoch begins, except for its routes. Its
// model is that of the first worker in the roster: CheckJoin has compared the
// models of all others with it. The job begins at its first step, or behind
// CoordinatorOptions::start_checkpoint. REQUIRES: all workers and servers have
// joined, and their hosts have numbers.
Job MakeFirstJob(const CoordinatorOptions& options, const MemberList& roster);

}  // namespace nereus
