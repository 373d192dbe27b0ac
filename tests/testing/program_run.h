#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/admin/process.h"

namespace nereus {

// Run of a built program, for tests that use the program as a user does.
// Collects the program's output. The destructor ends the program and the
// processes of its process group. At most one run exists at a time, and the
// test has no other threads (see ProcessGroup).
class ProgramRun final : private ProcessEvents {
 public:
  // Longest wait in a test. It ends a test that hangs, and is far longer than a
  // program takes on a busy machine.
  static constexpr absl::Duration kLimit = absl::Minutes(10);

  // Starts `command`: a path below the repository's top folder or an absolute
  // path, then arguments. The program gets this process's environment, without
  // variables that begin with NEREUS_. Ends the test's process if the program
  // does not start.
  explicit ProgramRun(const std::vector<std::string>& command);

  // Collects output until `done()` returns true. Returns false if that takes
  // more than `limit`, or if waiting for the program fails.
  bool WaitUntil(const std::function<bool()>& done,
                 absl::Duration limit = kLimit);

  // Waits until the program has ended. Returns its exit code, or 128 plus the
  // number of the signal that has killed it. If the program takes more than
  // `limit`, fails the test with its standard error and returns -1.
  int Finish(absl::Duration limit = kLimit);

  // End of the program. Nothing: the program runs.
  const std::optional<ProcessExit>& exit() const { return exit_; }
  pid_t pid() const { return group_->pid(0); }

  // Whole lines of standard output and of standard error so far.
  const std::string& output() const { return output_; }
  const std::string& error() const { return error_; }

 private:
  void OnOutputLine(int process, const std::string& line) override;
  void OnErrorLine(int process, const std::string& line) override;
  void OnExit(int process, const ProcessExit& exit) override;

  std::string output_;
  std::string error_;
  std::optional<ProcessExit> exit_;
  // Must be the last member: it calls the events, which use the members above.
  std::unique_ptr<ProcessGroup> group_;
};

}  // namespace nereus
