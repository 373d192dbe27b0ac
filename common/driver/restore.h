#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace nereus {

// Reading of a part of a checkpoint, which a server begins and a thread of the
// disk carries out. The driver and this thread share the object: the disk may
// never answer, so the driver may end before the thread does. Thread-safe.
class Restore {
 public:
  // `wake` wakes the driver when the outcome is known.
  explicit Restore(std::function<void()> wake) : wake_(std::move(wake)) {}

  // How far the reading is.
  struct Progress {
    int64_t done = 0;   // Bytes that are read.
    int64_t total = 0;  // Bytes to read; 0: not known yet.
    // OK, or why the part cannot be read; nothing: the reading goes on.
    std::optional<absl::Status> outcome;
  };
  Progress progress() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return progress_;
  }

  // Notes that `done` bytes of `total` are read.
  void Note(int64_t done, int64_t total) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    progress_.done = done;
    progress_.total = total;
  }

  // Notes the outcome, and wakes the driver. The thread must not use the
  // buffers of the part after this call.
  void Finish(absl::Status outcome) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    progress_.outcome = std::move(outcome);
    if (wake_ != nullptr) wake_();
  }

  // Ends the use of `wake`: the driver is about to end.
  void Detach() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    wake_ = nullptr;
  }

 private:
  Mutex mu_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
  Progress progress_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
