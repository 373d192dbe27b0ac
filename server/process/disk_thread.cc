#include "server/process/disk_thread.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "server/coordinator/save_first.h"

namespace nereus {
namespace {

std::atomic<bool> left_behind = false;

struct Task {
  std::string what;
  DiskThread::Work work;
};

}  // namespace

struct DiskThread::State final {
  Mutex mu;
  std::deque<Task> queue ABSL_GUARDED_BY(mu);  // Tasks that wait.
  // Name of the task that runs, and the time when it began; "": none runs.
  std::string running ABSL_GUARDED_BY(mu);
  absl::Time since ABSL_GUARDED_BY(mu);
  bool reports ABSL_GUARDED_BY(mu) = false;    // True during a report.
  bool stopping ABSL_GUARDED_BY(mu) = false;   // The destructor runs.
  bool abandoned ABSL_GUARDED_BY(mu) = false;  // The owner is gone.

  bool is_done() const ABSL_SHARED_LOCKS_REQUIRED(mu) {
    return queue.empty() && running.empty();
  }
};

DiskWatch::DiskWatch(std::string what, absl::Duration lease)
    : thread_([this, what = std::move(what), lease] {
        for (int leases = 1; !done_.WaitForNotificationWithTimeout(lease);
             ++leases) {
          const bool ends = leases == SaveFirst::kHangingLeases;
          NEREUS_LOG(Warning, {LogEvent::kDisk})
              << what << ": the disk has not answered for "
              << absl::FormatDuration(leases * lease)
              << (ends ? ", and is given up" : "");
          if (!ends) continue;
          FlushLog(absl::Seconds(1));
          std::_Exit(kExitAgain);
        }
      }) {}

DiskWatch::~DiskWatch() {
  done_.Notify();
  thread_.join();
}

DiskThread::DiskThread()
    : state_(std::make_shared<State>()), thread_(&DiskThread::Run, state_) {}

DiskThread::~DiskThread() {
  std::string hangs;
  {
    MutexLock lock(&state_->mu);
    state_->stopping = true;
    state_->queue.clear();
    const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
      return state_->running.empty();
    };
    // A report uses the owner, so the owner waits for its end.
    const auto silent = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
      return !state_->reports;
    };
    if (!state_->mu.AwaitWithTimeout(done, kEndLimit)) {
      state_->mu.Await(silent);
      hangs = state_->running;
      state_->abandoned = !hangs.empty();
    }
  }
  if (hangs.empty()) {
    thread_.join();
    return;
  }
  left_behind = true;
  thread_.detach();
  NEREUS_LOG(Error, {LogEvent::kDisk})
      << "the disk is still busy with " << hangs << ", and is given up";
}

void DiskThread::Add(std::string what, Work work) {
  MutexLock lock(&state_->mu);
  state_->queue.push_back({std::move(what), std::move(work)});
}

bool DiskThread::Finish(absl::Duration limit) {
  MutexLock lock(&state_->mu);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
    return state_->is_done();
  };
  return state_->mu.AwaitWithTimeout(done, limit);
}

std::optional<DiskThread::Running> DiskThread::running() const {
  MutexLock lock(&state_->mu);
  if (state_->running.empty()) return std::nullopt;
  return Running{state_->running, SteadyNow() - state_->since};
}

void DiskThread::Run(std::shared_ptr<State> state) {
  const auto due = [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state->mu) {
    return state->stopping || !state->queue.empty();
  };
  while (true) {
    Task task;
    {
      MutexLock lock(&state->mu);
      state->mu.Await(due);
      if (state->stopping) return;
      task = std::move(state->queue.front());
      state->queue.pop_front();
      state->running = task.what;
      state->since = SteadyNow();
    }
    Report report = task.work();
    task.work = nullptr;  // Frees what the work has held, before the report.
    {
      MutexLock lock(&state->mu);
      if (state->abandoned) return;
      state->reports = true;
    }
    report();
    report = nullptr;
    MutexLock lock(&state->mu);
    state->reports = false;
    state->running.clear();
  }
}

bool IsDiskThreadLeftBehind() { return left_behind; }

}  // namespace nereus
