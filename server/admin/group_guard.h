#pragma once

#include <sys/types.h>

#include <memory>

#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {

// Guard against process groups that stay behind when this process is killed. If
// a process dies, the kernel kills its children on request (PR_SET_PDEATHSIG),
// but not their children. So a script `sh train.sh` would die, and the program
// that it runs would go on. The guard is a process of its own that notices the
// death of this process, kills all groups that were added, and exits. It also
// exits when this object is destroyed. A process that leaves its group is not
// guarded.
//
// The process must have no other thread when Start forks.
class GroupGuard {
 public:
  // Largest number of groups at a time. Further groups are not guarded.
  static constexpr int kGroupsMax = 1024;
  // Name of the guard's process, at most 15 bytes. A kill of all processes
  // named nereusctl must not reach the guard.
  static constexpr char kProcessName[] = "nereus-guard";

  // Starts the guard. Errors: kInternal, with the reason of the system.
  static absl::StatusOr<std::unique_ptr<GroupGuard>> Start();

  // Descriptor for Add.
  int descriptor() const { return pipe_.get(); }

  // Adds the calling process's group. It is for a child between fork and exec,
  // so it is async-signal-safe. `descriptor` is that of the parent's guard.
  static void AddOwnGroup(int descriptor);

  // Removes a group. The caller must not have waited for its leader yet:
  // afterwards, another group may get the same number.
  void Remove(pid_t group);

 private:
  explicit GroupGuard(Descriptor pipe) : pipe_(std::move(pipe)) {}

  // Write end of the pipe that the guard reads. The guard sees its end when no
  // process has it any more.
  const Descriptor pipe_;
};

}  // namespace nereus
