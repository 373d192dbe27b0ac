#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "server/process/disk_thread.h"

namespace nereus {

// Writes the parts of checkpoints of this server's shards while training goes
// on: one part at a time, on a thread of its own. Without this thread, each
// checkpoint would stop the driver thread for as long as the disk takes.
// Thread-safe.
class CheckpointWriter {
 public:
  // `written` is called with the outcome of each part, unless the destructor
  // drops the part. It is called on this object's thread or, if a later part
  // replaces the part, by the Save of the later one. `timed` gets the time that
  // each part took to write, or to fail, on this object's thread.
  CheckpointWriter(std::shared_ptr<Storage> storage,
                   std::function<void(const CheckpointPart&)> written,
                   std::function<void(absl::Duration)> timed);

  // Waits for the file that is being written, if any, as DiskThread does. Drops
  // the parts that wait, without a call of `written`.
  ~CheckpointWriter();

  // Queues a part. At most one part of each shard waits: if an older part of
  // the shard still waits, the disk is too slow. Then Save drops the older part
  // and reports its failure (`written`).
  void Save(JobPtr job, SaveCheckpoint save);

  // Returns the part that is being written; nothing if none is.
  std::optional<DiskThread::Running> running() const { return disk_.running(); }

 private:
  struct Waiting;  // Parts that wait.

  const std::shared_ptr<Storage> storage_;
  const std::function<void(const CheckpointPart&)> written_;
  const std::function<void(absl::Duration)> timed_;
  const std::shared_ptr<Waiting> waiting_;  // Shared with the disk's thread.
  DiskThread disk_;  // Last: its thread uses all of the above.
};

}  // namespace nereus
