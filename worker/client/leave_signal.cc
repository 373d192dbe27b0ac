#include "worker/public/leave_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "common/base/signal_exit.h"

namespace nereus {
namespace {

// Seconds from the first SIGTERM to the end of the process.
constexpr unsigned kPatienceSeconds = 9;

// State of the one LeaveSignal that exists; signal handlers use it.
std::atomic<bool> is_set_now = false;
struct sigaction terminate_before;
struct sigaction alarm_before;

void OnTerminate(int) {
  if (is_set_now.exchange(true)) {
    ExitAtOnce(LeaveSignal::kExitCode, "a second SIGTERM: ends at once");
  } else {
    alarm(kPatienceSeconds);
  }
}

void OnAlarm(int) {
  static_assert(kPatienceSeconds == 9);
  ExitAtOnce(LeaveSignal::kExitCode,
             "could not leave the job within 9 s of SIGTERM: ends at once");
}

void Install(int signal, void (*handler)(int), struct sigaction* before) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, before);
}

}  // namespace

LeaveSignal::LeaveSignal() {
  PrepareExitAtOnce();
  is_set_now = false;
  Install(SIGALRM, OnAlarm, &alarm_before);
  Install(SIGTERM, OnTerminate, &terminate_before);
}

LeaveSignal::~LeaveSignal() {
  sigaction(SIGTERM, &terminate_before, nullptr);
  if (is_set_now) alarm(0);
  sigaction(SIGALRM, &alarm_before, nullptr);
}

bool LeaveSignal::is_set() const { return is_set_now; }

}  // namespace nereus
