#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace nereus {

// Thread for work that waits for a disk: one task after another, in order. A
// disk may take any time for an operation, or never end it (NFS without its
// server, a volume that was detached), and no thread that waits for it can be
// interrupted. So a task touches nothing that its owner destroys. Thread-safe.
class DiskThread {
 public:
  // Function that reports what a task has done. It runs on the thread, unless
  // the owner is gone by then.
  using Report = std::function<void()>;
  // Work of a task. It owns, or shares, all that it uses.
  using Work = std::function<Report()>;

  DiskThread();
  // Drops the tasks that wait. Waits for the one that runs, for kEndLimit at
  // most. If it hangs for longer, leaves the thread behind: the thread ends
  // with the process, and reports nothing.
  ~DiskThread();
  DiskThread(const DiskThread&) = delete;
  DiskThread& operator=(const DiskThread&) = delete;

  // Queues a task, and does not wait. `what`: "writing the manifest of round
  // 7". The queue has no limit.
  void Add(std::string what, Work work);

  // Waits until all tasks are done, for `limit` at most. Returns false if they
  // are not.
  bool Finish(absl::Duration limit);

  // A task that runs.
  struct Running {
    std::string what;
    absl::Duration time;  // Time since it began.
  };
  // Returns the task that runs; nothing if none does.
  std::optional<Running> running() const;

  // Longest time for which the destructor waits.
  static constexpr absl::Duration kEndLimit = absl::Seconds(5);

 private:
  struct State;
  // Runs tasks until the owner is gone.
  static void Run(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;  // Shared with the thread.
  std::thread thread_;
};

// Watches an operation of a disk on the calling thread, at the start of a
// process, which has nothing to do meanwhile. While the operation runs, logs a
// line each `lease`. After SaveFirst::kHangingLeases leases, ends the process
// with kExitAgain, without destroying anything.
class DiskWatch {
 public:
  // `what`: "reading --state=job.state". `lease` > 0.
  DiskWatch(std::string what, absl::Duration lease);
  ~DiskWatch();
  DiskWatch(const DiskWatch&) = delete;
  DiskWatch& operator=(const DiskWatch&) = delete;

 private:
  absl::Notification done_;
  std::thread thread_;
};

// True if a DiskThread was left behind. Its task may go on at any moment, so
// the process must then end without destroying its globals (std::_Exit).
bool IsDiskThreadLeftBehind();

}  // namespace nereus
