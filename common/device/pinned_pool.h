#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Pool of pinned host memory, from and to which a GPU copies by itself. Memory
// that is given back stays pinned, and later calls of Take reuse it, because
// pinning memory takes much longer than copying it. The pool unpins free memory
// when a new allocation would otherwise exceed `bytes_max`, and when the pool
// is destroyed. Thread-safe.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  // Makes an empty pool for copies to and from `device`. `bytes_max`: limit of
  // the pinned bytes, >= 0.
  static std::shared_ptr<PinnedPool> Create(int device, int64_t bytes_max);

  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Raises the limit of the pinned bytes to `bytes_max`, unless it is higher.
  void Raise(int64_t bytes_max) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns `bytes` bytes of pinned memory. The memory goes back to the pool
  // when its last reference is gone; the pool lives until then. If the memory
  // in use leaves no room below `bytes_max`, waits for room, for `timeout` at
  // most. With 0 bytes, returns an empty buffer. `what`: subject of messages,
  // for example "layer conv1, gradient".
  //
  // Errors: kInvalidArgument, `bytes` is negative, or its RoundedUp is more
  // than `bytes_max`; kDeadlineExceeded, still no room: give memory back, then
  // try again; others of CudaStatus and DeviceScope.
  absl::StatusOr<Buffer> Take(absl::string_view what, int64_t bytes,
                              absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the length, in bytes, of a new allocation for `bytes` bytes: a
  // multiple of 64 KiB. So layers of nearly equal lengths can reuse each
  // other's allocations.
  static int64_t RoundedUp(int64_t bytes);

  // Number of bytes that are pinned, in use or free, or that a Take is about to
  // pin.
  int64_t bytes_pinned() const ABSL_LOCKS_EXCLUDED(mu_);
  // Number of bytes of the allocations in use. A reused allocation can be up to
  // twice as long as RoundedUp of the bytes that were asked for.
  int64_t bytes_used() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PinnedPool(int device, int64_t bytes_max)
      : device_(device), bytes_max_(bytes_max) {}

  // Allocation that one call of Take has reserved. The call holds the lock
  // while it reserves, and not while it pins memory.
  struct Claim {
    int64_t bytes = 0;       // Bytes of the allocation.
    void* memory = nullptr;  // Free allocation; null: pin a new one.
    // Free allocations (length in bytes, address) that are unpinned before the
    // new one is pinned, so that the limit holds.
    std::vector<std::pair<int64_t, void*>> given_up;
  };
  // Reserves an allocation of `bytes` bytes or more. REQUIRES: `bytes` is
  // rounded up; used_ + bytes <= bytes_max_.
  Claim MakeClaim(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // If `claim` has no memory: unpins the allocations of `given_up`, and then
  // pins new memory. After an error, `given_up` has the allocations that are
  // still pinned.
  absl::Status Fulfil(absl::string_view what, Claim& claim) const;
  // Takes an allocation of `bytes` bytes back into the pool. It stays pinned.
  void GiveBack(void* memory, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const int device_;  // Number of the GPU.
  mutable Mutex mu_;
  int64_t bytes_max_ ABSL_GUARDED_BY(mu_);   // Limit of pinned_.
  int64_t pinned_ ABSL_GUARDED_BY(mu_) = 0;  // See bytes_pinned.
  int64_t used_ ABSL_GUARDED_BY(mu_) = 0;    // See bytes_used.
  // Addresses of free allocations, by their lengths in bytes.
  std::multimap<int64_t, void*> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
