#pragma once

#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Writes the parts of checkpoints of this server's shards while training goes
// on: one part at a time, on a thread of its own. Without this thread, each
// checkpoint would stop the driver thread for as long as the disk takes.
// Thread-safe.
class CheckpointWriter {
 public:
  // `storage` is not owned and must outlive this. `written` is called with the
  // outcome of each part, unless the destructor drops the part. It is called on
  // this object's thread or, if a later part replaces the part, by the Save of
  // the later one.
  // `timed` gets the time that each part took to write, or to fail, on this
  // object's thread.
  CheckpointWriter(Storage* storage,
                   std::function<void(const CheckpointPart&)> written,
                   std::function<void(absl::Duration)> timed);

  // Waits for the file that is being written, if any. Drops the parts that
  // wait, without a call of `written`.
  ~CheckpointWriter();

  // Queues a part. At most one part of each shard waits: if an older part of
  // the shard still waits, the disk is too slow. Then Save drops the older part
  // and reports its failure (`written`).
  void Save(JobPtr job, SaveCheckpoint save) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A part that waits to be written.
  struct Task {
    JobPtr job;  // Job when Save was called.
    SaveCheckpoint save;
  };

  // Writes parts until the destructor runs. Runs on thread_.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  Storage* const storage_;
  const std::function<void(const CheckpointPart&)> written_;
  const std::function<void(absl::Duration)> timed_;

  Mutex mu_;
  std::map<int, Task> next_ ABSL_GUARDED_BY(mu_);  // Parts that wait, by shard.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus
