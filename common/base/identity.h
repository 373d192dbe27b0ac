#pragma once

#include <cstdint>
#include <string>

namespace nereus {

// Returns "host:pid" of this process, for messages.
std::string ProcessName();

// Returns a name that this process has not returned before: first ProcessName,
// then "host:pid.2" and so on. Any thread.
std::string UniqueName();

// Returns a random number from the kernel. No other run draws the same, by all
// odds.
uint64_t DrawUniqueId();

}  // namespace nereus
