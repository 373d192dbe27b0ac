#pragma once

#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Writes shards' shares of checkpoints while training goes on: one at a time,
// on a thread of its own. Thread-safe.
class CheckpointWriter {
 public:
  // `storage` is not owned and must outlive this. `written` is called on the
  // thread, once for each Save.
  CheckpointWriter(Storage* storage,
                   std::function<void(const CheckpointPart&)> written);

  // Waits for the file under way; those that wait are not written.
  ~CheckpointWriter();

  // Writes it as soon as those before are written. One of each shard may wait:
  // the disk is too slow if another one comes, and the older one is given up.
  void Save(JobPtr job, SaveCheckpoint save) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Task {
    JobPtr job;
    SaveCheckpoint save;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  Storage* const storage_;
  const std::function<void(const CheckpointPart&)> written_;

  Mutex mu_;
  std::map<int, Task> next_ ABSL_GUARDED_BY(mu_);  // By shard.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus
