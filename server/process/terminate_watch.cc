#include "server/process/terminate_watch.h"

#include <signal.h>

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/exit_codes.h"
#include "common/base/mutex.h"
#include "common/base/signal_exit.h"

namespace nereus {

struct TerminateWatch::State {
  Mutex mu;
  std::function<void()> on_terminate ABSL_GUARDED_BY(mu);
};

TerminateWatch::TerminateWatch() : state_(std::make_shared<State>()) {
  PrepareExitAtOnce();
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([state = state_, signals] {
    int received = 0;
    bool was_called = false;
    while (sigwait(&signals, &received) == 0) {
      MutexLock lock(&state->mu);
      const auto call = std::exchange(state->on_terminate, nullptr);
      if (call != nullptr) {
        was_called = true;
        call();
      } else {
        ExitAtOnce(kExitTerminated, was_called
                                        ? "a second SIGTERM: ends at once"
                                        : "SIGTERM: ends at once");
      }
    }
  }).detach();
}

TerminateWatch::~TerminateWatch() { Set(nullptr); }

void TerminateWatch::Set(std::function<void()> on_terminate) {
  MutexLock lock(&state_->mu);
  state_->on_terminate = std::move(on_terminate);
}

}  // namespace nereus
