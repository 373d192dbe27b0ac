#include "server/process/checkpoint_writer.h"

#include <utility>

#include "common/base/clock.h"
#include "server/process/checkpoint_files.h"

namespace nereus {

CheckpointWriter::CheckpointWriter(
    Storage* storage, std::function<void(const CheckpointPart&)> written,
    std::function<void(absl::Duration)> timed)
    : storage_(storage),
      written_(std::move(written)),
      timed_(std::move(timed)),
      thread_([this] { Run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void CheckpointWriter::Save(JobPtr job, SaveCheckpoint save) {
  // Part of the same shard that waited, which the new part replaces. Save calls
  // `written_` for it only after the lock is released.
  std::optional<Task> given_up;
  {
    MutexLock lock(&mu_);
    const int shard = save.shard;
    if (const auto waiting = next_.extract(shard); !waiting.empty()) {
      given_up = std::move(waiting.mapped());
    }
    next_.emplace(shard, Task{std::move(job), std::move(save)});
  }
  if (!given_up.has_value()) return;
  CheckpointPart part;
  part.epoch = given_up->job->epoch;
  part.shard = given_up->save.shard;
  part.round = given_up->save.round;
  part.error =
      "the disk is too slow: a later checkpoint came before this one was begun";
  written_(part);
}

void CheckpointWriter::Run() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !next_.empty();
  };
  while (true) {
    std::optional<Task> task;
    {
      MutexLock lock(&mu_);
      mu_.Await(due);
      if (stopping_) return;
      task = std::move(next_.extract(next_.begin()).mapped());
    }
    const absl::Time from = SteadyNow();
    const CheckpointPart part = WritePart(*storage_, *task->job, task->save);
    timed_(SteadyNow() - from);
    // Releases the values before the shard hears of the outcome: a shard can
    // update values in place if it has the only reference to them.
    task.reset();
    written_(part);
  }
}

}  // namespace nereus
