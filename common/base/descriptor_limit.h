#pragma once

namespace nereus {

// Returns the number of files and sockets that this process may have open.
int DescriptorLimit();

// Raises that number to the maximum that the system allows. For main files,
// before any thread starts.
void RaiseDescriptorLimit();

}  // namespace nereus
