// The guard reads numbers from a pair of sockets: N adds group N, and -N
// removes it. Each number is a packet. The end of the packets means that the
// owner has died or has destroyed its GroupGuard. A pipe would not do: a write
// after the guard's death would kill the writer by SIGPIPE. Between the fork of
// the guard and its exit, only async-signal-safe calls are made.

#include "server/admin/group_guard.h"

#include <errno.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/status.h"

namespace nereus {
namespace {

// Reads a number. Returns false at the end.
bool ReadNumber(int socket, pid_t& number) {
  ssize_t count = 0;
  do {
    count = read(socket, &number, sizeof(number));
  } while (count < 0 && errno == EINTR);
  return count == sizeof(number);
}

// After the guard has died, does nothing.
void WriteNumber(int socket, pid_t number) {
  ssize_t count = 0;
  do {
    count = send(socket, &number, sizeof(number), MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
}

// Runs in the guard. Closes all descriptors but its socket: another one could
// keep a pipe of the owner open. Closes `owners_end` of the socket first: on an
// old kernel close_range fails, and with that end open the guard would never
// see that the owner has died.
[[noreturn]] void RunGuard(int socket, int owners_end) {
  close(owners_end);
  setsid();  // Ctrl-C of a terminal does not reach the guard.
  // `killall nereusctl` does not reach the guard either.
  prctl(PR_SET_NAME, GroupGuard::kProcessName);
  if (dup2(socket, STDIN_FILENO) < 0) _exit(1);
  close_range(STDIN_FILENO + 1, ~0U, 0);
  std::array<pid_t, GroupGuard::kGroupsMax> groups;
  auto end = groups.begin();
  pid_t number = 0;
  while (ReadNumber(STDIN_FILENO, number)) {
    if (number < 0) {
      end = std::remove(groups.begin(), end, -number);
    } else if (end != groups.end()) {
      *end++ = number;
    }
  }
  for (auto group = groups.begin(); group != end; ++group) {
    kill(-*group, SIGKILL);
  }
  _exit(0);
}

}  // namespace

// Forks twice: the guard is a child of a child that ends at once, so it belongs
// to init and this process need not wait for it.
absl::StatusOr<std::unique_ptr<GroupGuard>> GroupGuard::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return InternalError("socketpair: ", strerror(errno));
  }
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  const pid_t child = fork();
  if (child < 0) return InternalError("fork: ", strerror(errno));
  if (child == 0) {
    const pid_t guard = fork();
    if (guard != 0) _exit(guard < 0 ? 1 : 0);
    RunGuard(read_end.get(), write_end.get());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return InternalError("cannot fork the guard of the processes");
  }
  return std::unique_ptr<GroupGuard>(new GroupGuard(std::move(write_end)));
}

void GroupGuard::AddOwnGroup(int descriptor) {
  WriteNumber(descriptor, getpgrp());
}

void GroupGuard::Remove(pid_t group) { WriteNumber(socket_.get(), -group); }

}  // namespace nereus
