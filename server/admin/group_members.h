#pragma once

#include <sys/types.h>

namespace nereus {

// True if a process group has a process that runs, besides its leader. The
// kernel tells this only in /proc, which is read whole. So it is for rare
// questions. Without /proc, the answer is false.
bool HasOtherMembers(pid_t group);

}  // namespace nereus
