#include "common/base/signal_exit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace nereus {
namespace {

using testing::ExitedWithCode;

// Each statement runs in a process of its own.
class SignalExitTest : public testing::Test {
 public:
  SignalExitTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Sends this process a signal, and stays until another thread ends it.
void EndBy(int signal_number) {
  ExitOnSignals();
  raise(signal_number);
  for (;;) pause();
}

// Gives this process a standard error that takes no more bytes.
void FillStandardError() {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK) != 0) abort();
  while (write(ends[1], "x", 1) == 1) {
  }
  fcntl(ends[1], F_SETFL, 0);
  dup2(ends[1], STDERR_FILENO);
}

TEST_F(SignalExitTest, TheLogEndsWithTheSignal) {
  EXPECT_EXIT(EndBy(SIGINT), ExitedWithCode(130),
              "INFO .nereus. SIGINT: ends at once\n$");
  EXPECT_EXIT(EndBy(SIGTERM), ExitedWithCode(143), "SIGTERM: ends at once\n$");
}

TEST_F(SignalExitTest, DoesNotWaitForAReaderOfTheLog) {
  EXPECT_EXIT(
      {
        FillStandardError();
        EndBy(SIGINT);
      },
      ExitedWithCode(130), "");
}

#ifndef __SANITIZE_THREAD__  // Which hands on no signal in a child of fork().

// Runs `child` in a child of fork(), and ends with its exit code.
template <typename Child>
void EndAsChildDoes(Child child) {
  ExitOnSignals();
  const pid_t process = fork();
  if (process == 0) child();
  int state = 0;
  waitpid(process, &state, 0);
  _exit(WIFEXITED(state) ? WEXITSTATUS(state) : 1);
}

TEST_F(SignalExitTest, AChildOfForkEndsWithoutTheThread) {
  EXPECT_EXIT(EndAsChildDoes([] {
                raise(SIGTERM);
                for (;;) pause();
              }),
              ExitedWithCode(143), "^$");
}

TEST_F(SignalExitTest, AChildOfForkMayPrepareAnew) {
  EXPECT_EXIT(EndAsChildDoes([] { EndBy(SIGTERM); }), ExitedWithCode(143),
              "SIGTERM: ends at once\n$");
}

#endif

TEST_F(SignalExitTest, EndsOnceHoweverManySignalsCome) {
  EXPECT_EXIT(
      {
        PrepareExitAtOnce();
        ExitAtOnce(143, "the first");
        ExitAtOnce(143, "the second");
      },
      ExitedWithCode(143), "^(.*the first\n)?$");
}

}  // namespace
}  // namespace nereus
