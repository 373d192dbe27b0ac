#pragma once

#include <cstdint>
#include <string>

namespace nereus {

// Returns "host:pid" of this process, for messages.
std::string ProcessName();

// Returns a name that this process has not returned before: first ProcessName,
// then "host:pid.2" and so on. Any thread.
std::string UniqueName();

// Returns the kernel's boot id. All processes of one machine read the same one,
// containers included, and no other machine has it. Returns "" if it cannot be
// read.
std::string BootId();

// Returns the number of this process's network namespace. Namespaces of one
// machine have different numbers; those of two machines may have the same.
// Returns 0 if it cannot be read.
uint64_t NetworkNamespace();

// Returns a random number from the kernel. No other run draws the same, by all
// odds.
uint64_t DrawUniqueId();

}  // namespace nereus
