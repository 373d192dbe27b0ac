#include "common/base/signal_exit.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>

#include "common/base/logging.h"
#include "common/base/mutex.h"

namespace nereus {
namespace {

// Request to end the process; the thread waits for it. Signal handlers write
// it, so it has no lock.
struct Request {
  sem_t is_made;
  std::atomic<pid_t> process;  // Process that has the thread; 0: none has.
  std::atomic<bool> is_taken;
  std::atomic<int> exit_code;
  std::atomic<const char*> text;
};
Request request;

// Handler of SIGALRM.
void EndWithoutLine(int) { _exit(request.exit_code); }

// Body of the thread.
void ServeRequest() {
  while (sem_wait(&request.is_made) != 0 && errno == EINTR) {
  }
  NEREUS_LOG(Info, {LogEvent::kEnd}) << request.text.load();
  FlushLog(kLogFlushLimit);
  _exit(request.exit_code);
}

void OnSignal(int signal_number) {
  ExitAtOnce(128 + signal_number, signal_number == SIGINT
                                      ? "SIGINT: ends at once"
                                      : "SIGTERM: ends at once");
}

}  // namespace

void PrepareExitAtOnce() {
  static Mutex mu;
  MutexLock lock(&mu);
  if (request.process == getpid()) return;
  sem_init(&request.is_made, /*pshared=*/0, /*value=*/0);
  request.is_taken = false;
  // The thread takes no signals: a handler would wait for it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(ServeRequest).detach();
    request.process = getpid();
  } catch (const std::system_error&) {
    request.process = 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ExitAtOnce(int exit_code, const char* text) {
  if (request.process != getpid() || request.is_taken.exchange(true)) {
    _exit(exit_code);
  }
  request.exit_code = exit_code;
  request.text = text;
  struct sigaction action = {};
  action.sa_handler = EndWithoutLine;
  sigemptyset(&action.sa_mask);
  sigaction(SIGALRM, &action, nullptr);
  alarm(/*seconds=*/1);
  sem_post(&request.is_made);
}

void ExitOnSignals() {
  PrepareExitAtOnce();
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace nereus
