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

// A run of a built program, for tests that use the program as a user does.
// Collects the program's output. The program, and all that it has started, end
// with this object. At most one run at a time, in a process without other
// threads (see ProcessGroup).
class ProgramRun final : private ProcessEvents {
 public:
  static constexpr absl::Duration kLimit = absl::Minutes(10);

  // Starts `command`: a path below the top folder, then arguments. The program
  // gets this process's environment without the variables of Nereus. Fails the
  // test if it does not start.
  explicit ProgramRun(const std::vector<std::string>& command);

  // Lets the program run until `done()`. False if that takes more than `limit`.
  // The limit ends a test that hangs, and is far longer than a busy machine
  // needs.
  bool WaitUntil(const std::function<bool()>& done,
                 absl::Duration limit = kLimit);

  // Lets the program run to its end. Returns its exit code. Fails the test,
  // with the output, if that takes more than `limit`.
  int Finish(absl::Duration limit = kLimit);

  // The end of the program, if it has ended.
  const std::optional<ProcessExit>& exit() const { return exit_; }
  pid_t pid() const { return group_->pid(0); }

  // Whole lines that the program has written so far.
  const std::string& output() const { return output_; }
  const std::string& error() const { return error_; }

 private:
  void OnOutputLine(int process, const std::string& line) override;
  void OnErrorLine(int process, const std::string& line) override;
  void OnExit(int process, const ProcessExit& exit) override;

  std::string output_;
  std::string error_;
  std::optional<ProcessExit> exit_;
  std::unique_ptr<ProcessGroup> group_;  // Last: it reports to the rest.
};

}  // namespace nereus
