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

// One run of a built program, for tests that use it as a user does: collects
// what it writes. The program, and what it has started, end with this object.
// One at a time, in a process without other threads (see ProcessGroup).
class ProgramRun final : private ProcessEvents {
 public:
  // Starts `command`: a path below the top folder, then arguments. It gets this
  // process's environment without our own variables. Fails the test if it does
  // not start.
  explicit ProgramRun(const std::vector<std::string>& command);

  // Lets it run until `done()`; false if that takes more than `limit`.
  bool WaitUntil(const std::function<bool()>& done,
                 absl::Duration limit = absl::Minutes(2));

  // Lets it run to its end and returns its exit code. Fails the test, with what
  // it has written, if that takes more than `limit`.
  int Finish(absl::Duration limit = absl::Minutes(2));

  // How it ended, if it has.
  const std::optional<ProcessExit>& exit() const { return exit_; }
  pid_t pid() const { return group_->pid(0); }

  // What it has written so far, to the end of a line.
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
