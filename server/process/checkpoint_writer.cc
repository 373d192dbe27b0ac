#include "server/process/checkpoint_writer.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

// A part that waits to be written.
struct Task {
  JobPtr job;  // Job when Save was called.
  SaveCheckpoint save;
};

}  // namespace

struct CheckpointWriter::Waiting final {
  // Removes the part of `shard` that waits, and returns it.
  std::optional<Task> Take(int shard) ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    auto waiting = by_shard.extract(shard);
    if (waiting.empty()) return std::nullopt;
    return std::move(waiting.mapped());
  }

  Mutex mu;
  std::map<int, Task> by_shard ABSL_GUARDED_BY(mu);
};

CheckpointWriter::CheckpointWriter(
    std::shared_ptr<Storage> storage,
    std::function<void(const CheckpointPart&)> written,
    std::function<void(absl::Duration)> timed)
    : storage_(std::move(storage)),
      written_(std::move(written)),
      timed_(std::move(timed)),
      waiting_(std::make_shared<Waiting>()) {}

CheckpointWriter::~CheckpointWriter() = default;

// The disk has a task for each part that waits.
void CheckpointWriter::Save(JobPtr job, SaveCheckpoint save) {
  const int shard = save.shard;
  const std::optional<Task> given_up = waiting_->Take(shard);
  {
    MutexLock lock(&waiting_->mu);
    waiting_->by_shard.emplace(shard, Task{std::move(job), std::move(save)});
  }
  if (given_up.has_value()) {
    CheckpointPart part;
    part.epoch = given_up->job->epoch;
    part.shard = shard;
    part.round = given_up->save.round;
    part.error =
        "the disk is too slow: a later checkpoint came before this one was "
        "begun";
    return written_(part);
  }
  disk_.Add(absl::StrCat("writing a checkpoint's part of shard ", shard),
            [this, shard, waiting = waiting_,
             storage = storage_]() -> DiskThread::Report {
              std::optional<Task> task = waiting->Take(shard);
              const absl::Time from = SteadyNow();
              const CheckpointPart part =
                  WritePart(*storage, *task->job, task->save);
              const absl::Duration time = SteadyNow() - from;
              // Releases the values before the shard hears of the outcome: a
              // shard can update values in place if it has the only reference
              // to them.
              task.reset();
              return [this, part, time] {
                timed_(time);
                written_(part);
              };
            });
}

}  // namespace nereus
