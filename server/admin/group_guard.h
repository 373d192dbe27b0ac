#pragma once

#include <sys/types.h>

#include <memory>

#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {

// Guard against process groups that stay behind when this process is killed. If
// a process dies, the kernel kills its children on request (PR_SET_PDEATHSIG),
// but not the children of these children. So a script `sh train.sh` would die,
// and the program that it runs would go on. The guard is a process of its own.
// When this process dies or this object is destroyed, the guard kills all
// groups that were added and not removed, and exits. It does not kill a process
// that has left its group.
//
// This process must have no other thread when Start forks.
class GroupGuard {
 public:
  // Largest number of groups at a time. Further groups are not guarded.
  static constexpr int kGroupsMax = 1024;
  // Name of the guard's process, 15 bytes at most. It differs from nereusctl,
  // so that `killall nereusctl` does not kill the guard.
  static constexpr char kProcessName[] = "nereus-guard";

  // Starts the guard. Errors: kInternal, this process cannot make the socket,
  // or cannot fork.
  static absl::StatusOr<std::unique_ptr<GroupGuard>> Start();

  // Descriptor for AddOwnGroup.
  int descriptor() const { return socket_.get(); }

  // Adds the calling process's group. A child calls this between fork and exec,
  // so it is async-signal-safe. `descriptor` is that of the parent's guard.
  static void AddOwnGroup(int descriptor);

  // Removes a group. REQUIRES: the caller has not called waitpid for the leader
  // of the group yet. After that call, another group could get the same number.
  void Remove(pid_t group);

 private:
  explicit GroupGuard(Descriptor socket) : socket_(std::move(socket)) {}

  // Socket whose packets the guard reads. When no process has it open any more,
  // the guard reads the end.
  const Descriptor socket_;
};

}  // namespace nereus
