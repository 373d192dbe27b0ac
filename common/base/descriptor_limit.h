#pragma once

#include "common/base/status.h"

namespace nereus {

// Returns the number of files and sockets that this process may have open at a
// time.
int DescriptorLimit();

// Checks that this process may have open what a server of a job needs: two
// connections to each worker, two to each server, and 64 for all else. A
// process that ran out of descriptors later would lose workers at random.
// Errors: kInvalidArgument, with both numbers.
absl::Status CheckDescriptors(int workers, int servers);

// Raises DescriptorLimit() to the hard limit of this process. If the system
// refuses, nothing changes. Main functions call this before any thread starts.
void RaiseDescriptorLimit();

}  // namespace nereus
