#pragma once

#include "common/base/status.h"

namespace nereus {

// Returns the number of files and sockets that this process may have open at a
// time.
int DescriptorLimit();

// Checks that DescriptorLimit() is enough for a server of a job: two
// descriptors for each worker, two for each server, and 64 for everything else.
// A process that ran out of descriptors later would lose workers at random.
// Errors: kInvalidArgument, with the number that is needed and the limit.
absl::Status CheckDescriptors(int workers, int servers);

// Raises DescriptorLimit() to the hard limit of this process. If the system
// refuses, nothing changes. Main functions call this before any thread starts.
void RaiseDescriptorLimit();

}  // namespace nereus
