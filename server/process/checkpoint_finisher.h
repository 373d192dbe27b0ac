#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/checkpoint/storage.h"
#include "server/coordinator/coordinator.h"

namespace nereus {

// Finishes checkpoints that have all parts on disk: writes the manifest that
// makes a checkpoint complete, then removes old checkpoints (KeepLast). Does
// this on a thread of its own, because disks are slow, and for one checkpoint
// at a time. Thread-safe.
class CheckpointFinisher {
 public:
  // Keeps the newest `kept` checkpoints. `storage` is not owned and must
  // outlive this; null if Finish is never called. `written` is called once for
  // each Finish, on the thread of this object, with mu_ not held.
  CheckpointFinisher(
      Storage* storage, int kept, std::string job_name,
      std::function<void(int64_t round, const absl::Status&)> written);

  // Waits until all queued checkpoints are finished. Until then `written` may
  // still run.
  ~CheckpointFinisher();

  // Queues a checkpoint to be finished, and does not wait. The queue has no
  // limit.
  void Finish(CompleteCheckpoint complete) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Finishes checkpoints until the destructor runs and the queue is empty. Runs
  // on thread_.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  Storage* const storage_;
  const int kept_;
  const std::string job_name_;
  const std::function<void(int64_t round, const absl::Status&)> written_;

  Mutex mu_;
  // Checkpoints that are not finished yet, oldest first.
  std::deque<CompleteCheckpoint> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus
