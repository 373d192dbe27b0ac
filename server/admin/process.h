#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/admin/line_buffer.h"

namespace nereus {

// How a process ended.
struct ProcessExit {
  int code = 0;    // Its exit code, if `signal` is 0.
  int signal = 0;  // The signal that killed it.

  bool ok() const { return code == 0 && signal == 0; }
};

// "exited with code 1", "was killed by signal 9 (Killed)".
std::string DescribeExit(const ProcessExit& exit);

// This process's environment without the variables whose names begin with
// `prefix`: what a child gets that takes its flags from the command line alone.
std::vector<std::string> EnvironmentWithout(absl::string_view prefix);

struct ProcessOptions {
  // The program's path, then its arguments.
  std::vector<std::string> command;

  // "NAME=value" each: all of the process's environment.
  std::vector<std::string> environment;
};

// What ProcessGroup tells its owner. `process` is what Start returned.
class ProcessEvents {
 public:
  virtual ~ProcessEvents() = default;

  // A line, without its line feed, cut at ProcessGroup::kLineBytesMax.
  virtual void OnOutputLine(int process, const std::string& line) = 0;
  virtual void OnErrorLine(int process, const std::string& line) = 0;

  // Comes last for a process: all its lines came before.
  virtual void OnExit(int process, const ProcessExit& exit) = 0;
};

// A set of child processes whose lifetime is bound to this object: whatever way
// its owner ends, none of them stays behind.
//
// - Stop and the destructor end them all and wait for them.
// - Should this process be killed, the kernel kills each child
//   (PR_SET_PDEATHSIG).
// - Each child leads a process group of its own: the terminal's Ctrl-C goes to
//   the owner alone, which decides what to do, and the children of a child die
//   with it.
//
// From Create on, SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in the
// calling thread and read by WaitOnce; the destructor restores the mask. To be
// used by one thread, the one that called Create, in a process that has no
// other ones when Start forks. One object at a time.
class ProcessGroup {
 public:
  static constexpr size_t kLineBytesMax = size_t{4} << 20;

  // `events`: not owned, must outlive this; must not call back in here.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(
      ProcessEvents* events);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Starts a process, with /dev/null as its input, and returns its index: 0, 1,
  // ... Errors: kInvalidArgument, an empty command; kNotFound, no such program;
  // kInternal, with the system's reason.
  absl::StatusOr<int> Start(const ProcessOptions& options);

  // Waits for something to happen, `timeout` at most, and reports it to the
  // ProcessEvents. Returns the SIGINT, SIGTERM or SIGHUP that this process has
  // got, or 0. Errors: kInternal, with the system's reason.
  absl::StatusOr<int> WaitOnce(absl::Duration timeout);

  // Ends all processes: SIGTERM, and SIGKILL to those that are still there
  // after `grace`, or at once when this process gets another SIGINT, SIGTERM or
  // SIGHUP. Returns when all are gone and reported.
  void Stop(absl::Duration grace);

  // Processes started and not yet reported by OnExit.
  int running() const;
  bool running(int process) const;

  // The process's id, for messages and tests.
  pid_t pid(int process) const;

 private:
  struct Child;

  ProcessGroup(ProcessEvents* events, int signal_fd,
               const sigset_t& original_mask);

  // Returns the signal for this process, if there was one, or 0.
  int ReadSignals();
  void Report(const Child& child, bool is_error, const std::string& line);
  void ReadPipe(Child& child, bool is_error);
  void ClosePipe(Child& child, bool is_error);
  void Reap();
  void SignalAll(int signal);

  ProcessEvents* const events_;
  const int signal_fd_;
  const sigset_t original_mask_;
  std::vector<std::unique_ptr<Child>> children_;
};

}  // namespace nereus
