#pragma once

#include <cstdint>
#include <string>

namespace nereus {

// Returns "host:pid" of this process. Processes in two containers can have the
// same host name and pid, and then get the same text.
std::string ProcessName();

// Returns a name that this process has not returned before: first ProcessName,
// then "host:pid.2" and so on. Any thread may call this.
std::string UniqueName();

// Returns the kernel's boot id. All processes under one kernel read the same
// id, in containers too. No other kernel has it. Returns "" if the id cannot be
// read.
std::string BootId();

// Returns the number of this process's network namespace. Namespaces of one
// kernel have different numbers; namespaces of different kernels may have the
// same number. Returns 0 if the number cannot be read.
uint64_t NetworkNamespace();

// Returns a random number from the kernel. Two of these numbers are equal with
// a probability of 2^-64.
uint64_t DrawUniqueId();

}  // namespace nereus
