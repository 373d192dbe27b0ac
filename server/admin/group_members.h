#pragma once

#include <sys/types.h>

namespace nereus {

// True if a process other than its leader runs in a process group. Reads all of
// /proc, because the kernel tells this nowhere else, and so is slow. Returns
// false if there is no /proc.
bool HasOtherMembers(pid_t group);

}  // namespace nereus
