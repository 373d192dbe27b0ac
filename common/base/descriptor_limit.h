#pragma once

namespace nereus {

// Returns the number of files and sockets that this process may have open at a
// time.
int DescriptorLimit();

// Raises that number to the hard limit of this process, if the system lets it.
// Called by main functions before any thread starts.
void RaiseDescriptorLimit();

}  // namespace nereus
