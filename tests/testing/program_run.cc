#include "tests/testing/program_run.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"

namespace nereus {

// The test may have been started in the background, where a shell has SIGINT
// ignored. The program would ignore it, too.
ProgramRun::ProgramRun(const std::vector<std::string>& command) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  auto group = ProcessGroup::Create(this);
  NEREUS_CHECK(group.ok()) << group.status();
  group_ = *std::move(group);
  const auto process = group_->Start({command, EnvironmentWithout("NEREUS_")});
  NEREUS_CHECK(process.ok()) << process.status();
}

bool ProgramRun::WaitUntil(const std::function<bool()>& done,
                           absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    if (!group_->WaitOnce(absl::Milliseconds(20)).ok()) return false;
  }
  return true;
}

int ProgramRun::Finish(absl::Duration limit) {
  EXPECT_TRUE(WaitUntil([this] { return exit_.has_value(); }, limit))
      << "runs for more than " << limit << ": " << error_;
  return ShellCode(exit_.value_or(ProcessExit{-1, 0}));
}

void ProgramRun::OnOutputLine(int, const std::string& line) {
  absl::StrAppend(&output_, line, "\n");
}

void ProgramRun::OnErrorLine(int, const std::string& line) {
  absl::StrAppend(&error_, line, "\n");
}

void ProgramRun::OnExit(int, const ProcessExit& exit) { exit_ = exit; }

}  // namespace nereus
