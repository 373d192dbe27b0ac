#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Pinned host memory, which a GPU copies to and from by itself: as much as is
// asked for at a time, up to a limit, kept for the next round, since to pin
// memory, and to give it up, costs as much as to copy it many times.
// Thread-safe.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  // For copies of `device`. `bytes_max`: what there may be in all, >= 0.
  static std::shared_ptr<PinnedPool> Create(int device, int64_t bytes_max);

  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Memory that is the pool's again when the last reference is gone; the pool
  // lives until then. Waits while others have too much of it, for `timeout` at
  // most. `what`: on whose account, for messages.
  //
  // Errors: kInvalidArgument, more than the pool may have; kDeadlineExceeded;
  // kResourceExhausted, kUnavailable, what CUDA says.
  absl::StatusOr<Buffer> Take(absl::string_view what, int64_t bytes,
                              absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // What `bytes` of it take: so layers of nearly the same size can follow each
  // other.
  static int64_t RoundedUp(int64_t bytes);

  // What is pinned now, in use or not.
  int64_t bytes_pinned() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t bytes_used() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PinnedPool(int device, int64_t bytes_max)
      : device_(device), bytes_max_(bytes_max) {}

  // What one call of Take gets, by itself from then on.
  struct Claim {
    int64_t bytes = 0;
    void* memory = nullptr;                           // Null: to be pinned,
    std::vector<std::pair<int64_t, void*>> given_up;  // once these are not.
  };
  // REQUIRES: there is room.
  Claim MakeClaim(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Fulfil(absl::string_view what, Claim& claim) const;
  void GiveBack(void* memory, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const int device_;
  const int64_t bytes_max_;
  mutable Mutex mu_;
  int64_t pinned_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  std::multimap<int64_t, void*> free_ ABSL_GUARDED_BY(mu_);  // By bytes.
};

}  // namespace nereus
