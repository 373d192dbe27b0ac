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
// makes a checkpoint complete, then removes the oldest ones. Works on a thread
// of its own, one checkpoint at a time, since disks are slow. Thread-safe.
class CheckpointFinisher {
 public:
  // Keeps the last `kept` checkpoints of `storage`, which is borrowed, must
  // outlive this, and may be null if Finish is never called. `written` is
  // called on the thread, once for each Finish, without a lock.
  CheckpointFinisher(
      Storage* storage, int kept, std::string job_name,
      std::function<void(int64_t round, const absl::Status&)> written);

  // Finishes all checkpoints that are queued.
  ~CheckpointFinisher();

  // Queues a checkpoint. The coordinator has few under way at a time.
  void Finish(CompleteCheckpoint complete) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Runs on thread_.
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
