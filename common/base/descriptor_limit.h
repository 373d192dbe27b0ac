#pragma once

namespace nereus {

// Returns the number of files and sockets that this process may have open at a
// time.
int DescriptorLimit();

// Raises DescriptorLimit() to the hard limit of this process. If the system
// refuses, nothing changes. Main functions call this before any thread starts.
void RaiseDescriptorLimit();

}  // namespace nereus
