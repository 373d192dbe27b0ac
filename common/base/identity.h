#pragma once

#include <cstdint>
#include <string>

namespace nereus {

// "host:pid" of this process, for messages.
std::string ProcessName();

// The same, unlike any that this has returned before in this process: the
// second one is "host:pid.2".
std::string UniqueName();

// A random number from the kernel, unlike any other run's.
uint64_t DrawUniqueId();

}  // namespace nereus
