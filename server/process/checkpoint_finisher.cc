#include "server/process/checkpoint_finisher.h"

#include <optional>
#include <utility>

#include "common/base/logging.h"
#include "common/checkpoint/checkpoint.h"
#include "server/process/checkpoint_files.h"

namespace nereus {

CheckpointFinisher::CheckpointFinisher(
    Storage* storage, int kept, std::string job_name,
    std::function<void(int64_t round, const absl::Status&)> written)
    : storage_(storage),
      kept_(kept),
      job_name_(std::move(job_name)),
      written_(std::move(written)),
      thread_([this] { Run(); }) {}

CheckpointFinisher::~CheckpointFinisher() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void CheckpointFinisher::Finish(CompleteCheckpoint complete) {
  MutexLock lock(&mu_);
  queue_.push_back(std::move(complete));
}

// Returns when the destructor runs and the queue is empty.
void CheckpointFinisher::Run() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !queue_.empty();
  };
  while (true) {
    // The checkpoint leaves the queue first, so that no lock is held while the
    // disk works.
    std::optional<CompleteCheckpoint> next;
    {
      MutexLock lock(&mu_);
      mu_.Await(due);
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    const absl::Status written = WriteWhole(*storage_, job_name_, *next);
    if (written.ok()) {
      // If old checkpoints cannot be removed, the new one counts all the same.
      const absl::Status removed = KeepLast(*storage_, kept_);
      if (!removed.ok()) {
        NEREUS_LOG(Warning, {LogEvent::kCheckpoint})
            << "older checkpoints are not all removed: " << removed.message();
      }
    }
    written_(next->record.round, written);
  }
}

}  // namespace nereus
