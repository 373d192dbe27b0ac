#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace nereus {

// A process as /proc shows it.
struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  std::string name;
  // State letter of the kernel. 'Z': dead, and its parent has not waited for
  // it.
  char state = '?';
};

// Returns the process with this id, or nothing if there is none.
std::optional<ProcessInfo> ReadProcess(const std::string& pid);

// Returns the children of a process.
std::vector<ProcessInfo> ChildrenOf(pid_t parent);

// True if the process has ended.
bool IsGone(pid_t pid);

}  // namespace nereus
