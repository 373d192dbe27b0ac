#pragma once

#include <sys/types.h>

#include <string>

namespace nereus {

// True if a process other than its leader runs in a process group. Reads all of
// /proc, because the kernel tells this nowhere else, and so is slow. Returns
// false if there is no /proc. `proc`: another folder, for tests.
bool HasOtherMembers(pid_t group, const std::string& proc = "/proc");

}  // namespace nereus
