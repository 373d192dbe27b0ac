#pragma once

#include <functional>
#include <memory>

namespace nereus {

// Calls a function when the process gets SIGTERM, on a thread of its own. A
// second SIGTERM ends the process at once, with exit code 143.
//
// The signal must be blocked in all threads that exist while this does: so make
// the first TerminateWatch before the process has other threads.
class TerminateWatch {
 public:
  // Blocks SIGTERM, and begins to wait for it.
  TerminateWatch();
  // After this, SIGTERM ends the process at once.
  ~TerminateWatch();
  TerminateWatch(const TerminateWatch&) = delete;
  TerminateWatch& operator=(const TerminateWatch&) = delete;

  // Sets the function. Without a function, the first SIGTERM ends the process.
  void Set(std::function<void()> on_terminate);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // Shared with the thread.
};

}  // namespace nereus
