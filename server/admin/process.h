#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "server/admin/group_guard.h"

namespace nereus {

// Cuts a stream of bytes into lines, as the bytes arrive. Holds at most
// `line_bytes_max` bytes of a line. Drops the rest of a longer line, and adds
// the number of dropped bytes to its end. So a process that never ends its line
// does not fill the memory. Thread-compatible.
class LineBuffer {
 public:
  explicit LineBuffer(size_t line_bytes_max)
      : line_bytes_max_(line_bytes_max) {}

  // Adds bytes, and returns the lines that they end, without line feeds.
  std::vector<std::string> Append(absl::string_view bytes);

  // Returns the bytes after the last line feed, as a line; nothing if there are
  // none.
  std::optional<std::string> Finish();

 private:
  // Ends the unfinished line, and returns it.
  std::string TakeLine();
  // Adds bytes to the unfinished line, up to the limit.
  void Extend(absl::string_view part);

  const size_t line_bytes_max_;
  std::string line_;          // The unfinished line.
  size_t dropped_bytes_ = 0;  // Bytes of this line beyond the limit.
};

// True if a process other than its leader runs in a process group. Reads all of
// /proc, because the kernel tells this nowhere else, and so is slow. Returns
// false if there is no /proc. `proc`: another folder, for tests.
bool HasOtherMembers(pid_t group, const std::string& proc = "/proc");

// Exit of a process.
struct ProcessExit {
  // Exit code, if `signal` is 0.
  int code = 0;
  // Signal that killed the process; 0: it ended by itself.
  int signal = 0;

  bool ok() const { return code == 0 && signal == 0; }
};

// Returns "exited with code 1", or "was killed by signal 9 (Killed)".
std::string DescribeExit(const ProcessExit& exit);

// Returns the exit code that a shell gives for this exit: 128 plus the signal
// that killed the process, or the exit code.
int ShellCode(const ProcessExit& exit);

// Returns the environment of this process without variables that begin with
// `prefix`.
std::vector<std::string> EnvironmentWithout(absl::string_view prefix);

// Program to start.
struct ProcessOptions {
  // Path of the program, and arguments.
  std::vector<std::string> command;
  // Whole environment, "NAME=value".
  std::vector<std::string> environment;
};

// Receiver of the events of a ProcessGroup. `process` is the index that Start
// returned.
class ProcessEvents {
 public:
  virtual ~ProcessEvents() = default;

  // Receive a line of standard output or standard error, without its line feed,
  // cut at ProcessGroup::kLineBytesMax (LineBuffer).
  virtual void OnOutputLine(int process, const std::string& line) = 0;
  virtual void OnErrorLine(int process, const std::string& line) = 0;

  // Receives the end of a process, after all of its lines.
  virtual void OnExit(int process, const ProcessExit& exit) = 0;
};

// A set of child processes that end when this object is destroyed:
//
// - Stop and the destructor end all children and wait for them.
// - If this process is killed, the kernel kills each child (PR_SET_PDEATHSIG),
//   and GroupGuard the children's own children.
// - Each child leads a process group of its own. So Ctrl-C of a terminal
//   reaches only this process, which decides about the children.
// - When a child ends by itself, this object kills the child's own children in
//   the group. But if Signal or Stop has asked the group to end, the child's
//   own children get as much time as the child: the child counts as running
//   until they have ended, or Stop or Signal kills them.
//
// From Create on, SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in the
// calling thread, and WaitOnce reads them; the destructor restores the mask. A
// signal that this process ignores at Create stays ignored, here and in the
// children.
// Only the thread that called Create may use the object. The process must have
// no other thread when Start forks: a lock that another thread holds would stay
// locked in the child. The thread of the log does no harm: a fork waits for its
// locks (LogWriter). A process may have one object at a time.
class ProcessGroup {
 public:
  // Largest number of bytes of a line that is reported.
  static constexpr size_t kLineBytesMax = size_t{4} << 20;

  // `events` isn't owned, must outlive this, and must not call the group.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(
      ProcessEvents* events);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Starts a process, with /dev/null as its input. Returns its index: 0, 1, ...
  // Errors: kInvalidArgument, the command is empty; kNotFound, there is no such
  // program; kInternal, with the reason of the system.
  absl::StatusOr<int> Start(const ProcessOptions& options);

  // Waits for events, at most for `timeout`, and reports them. Returns the
  // SIGINT, SIGTERM or SIGHUP that this process has received, or 0.
  // Errors: kInternal, with the reason of the system.
  absl::StatusOr<int> WaitOnce(absl::Duration timeout);

  // Sends a signal to a process and to its own children in its process group.
  // Signal 0 sends nothing. Returns true if `process` runs.
  bool Signal(int process, int signal);

  // Sends SIGTERM to all processes. After `grace`, or if this process receives
  // SIGINT, SIGTERM or SIGHUP meanwhile, kills the processes that are left.
  // Returns when all processes have ended and are reported.
  void Stop(absl::Duration grace);

  // Number of processes that run: started, and their end is not reported yet.
  int running() const;
  // True if child `process` runs.
  bool running(int process) const;

  // Process id of child `process`, for messages and tests.
  pid_t pid(int process) const;

 private:
  struct Child;
  struct Stream;

  ProcessGroup(ProcessEvents* events, int signal_fd,
               const sigset_t& original_mask,
               std::unique_ptr<GroupGuard> guard);

  // Reads all signals that are pending. Returns SIGINT, SIGTERM, SIGHUP, or 0.
  int ReadSignals();
  // Reads what a child has written, and reports the lines.
  void ReadStream(const Child& child, Stream& stream);
  // Closes the pipe, and reports a last line without a line feed.
  void CloseStream(const Child& child, Stream& stream);
  void Report(const Child& child, const Stream& stream,
              const std::string& line);
  // Reports the children that have ended, except those whose own children still
  // have time to end. Does not wait for children that run.
  void Reap();
  void SignalAll(int signal);

  ProcessEvents* const events_;
  // Delivers the blocked signals.
  const Descriptor signal_fd_;
  // Mask of the thread before Create.
  const sigset_t original_mask_;
  const std::unique_ptr<GroupGuard> guard_;
  // True if a child has ended after it was asked to, and its own children have
  // not. Then WaitOnce looks at the child's group every 20 ms.
  bool is_outlived_ = false;
  // All children, by index.
  std::vector<std::unique_ptr<Child>> children_;
};

}  // namespace nereus
