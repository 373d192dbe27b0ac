#pragma once

namespace nereus {

// How many files and sockets this process may have open.
int DescriptorLimit();

// Raises that to what the system lets this process have. For main files.
void RaiseDescriptorLimit();

}  // namespace nereus
