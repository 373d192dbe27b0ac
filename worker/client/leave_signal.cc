#include "worker/public/leave_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace nereus {
namespace {

// Seconds from the first SIGTERM to the end of the process.
constexpr unsigned kPatienceSeconds = 9;

// State of the one LeaveSignal that exists; signal handlers use it.
std::atomic<bool> is_set_now = false;
struct sigaction terminate_before;
struct sigaction alarm_before;

void OnTerminate(int) {
  if (is_set_now.exchange(true)) _exit(LeaveSignal::kExitCode);
  alarm(kPatienceSeconds);
}

void OnAlarm(int) { _exit(LeaveSignal::kExitCode); }

void Install(int signal, void (*handler)(int), struct sigaction* before) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, before);
}

}  // namespace

LeaveSignal::LeaveSignal() {
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
