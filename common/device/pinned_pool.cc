#include "common/device/pinned_pool.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

// Number of bytes of which the length of each allocation is a multiple.
constexpr int64_t kGranule = int64_t{64} << 10;

}  // namespace

int64_t PinnedPool::RoundedUp(int64_t bytes) {
  return (bytes + kGranule - 1) / kGranule * kGranule;
}

std::shared_ptr<PinnedPool> PinnedPool::Create(int device, int64_t bytes_max) {
  NEREUS_CHECK(bytes_max >= 0) << bytes_max;
  return std::shared_ptr<PinnedPool>(new PinnedPool(device, bytes_max));
}

void PinnedPool::Raise(int64_t bytes_max) {
  MutexLock lock(&mu_);
  bytes_max_ = std::max(bytes_max_, bytes_max);
}

PinnedPool::~PinnedPool() {
  const DeviceScope scope(device_, "staging");
  for (const auto& [bytes, memory] : free_) {
    const absl::Status freed =
        CudaStatus(cudaFreeHost(memory), "staging", "cudaFreeHost", bytes);
    if (!freed.ok()) NEREUS_LOG(Error) << freed.message();
  }
}

int64_t PinnedPool::bytes_pinned() const {
  MutexLock lock(&mu_);
  return pinned_;
}

int64_t PinnedPool::bytes_used() const {
  MutexLock lock(&mu_);
  return used_;
}

PinnedPool::Claim PinnedPool::MakeClaim(int64_t bytes) {
  Claim claim;
  // Reuses a free allocation of up to twice the length, because pinning another
  // one takes long.
  const auto found = free_.lower_bound(bytes);
  if (found != free_.end() && found->first <= 2 * bytes &&
      used_ + found->first <= bytes_max_) {
    claim.bytes = found->first;
    claim.memory = found->second;
    free_.erase(found);
    used_ += claim.bytes;
    return claim;
  }
  claim.bytes = bytes;
  used_ += bytes;
  pinned_ += bytes;
  while (pinned_ > bytes_max_) {
    // Gives up the largest allocation first: that needs the fewest calls.
    const auto last = std::prev(free_.end());
    claim.given_up.push_back(*last);
    pinned_ -= last->first;
    free_.erase(last);
  }
  return claim;
}

absl::Status PinnedPool::Fulfil(absl::string_view what, Claim& claim) const {
  if (claim.memory != nullptr) return absl::OkStatus();
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  // Memory that cannot be unpinned stays in `given_up`, and Take puts it back.
  absl::Status status;
  while (status.ok() && !claim.given_up.empty()) {
    const auto [freed, memory] = claim.given_up.back();
    status = CudaStatus(cudaFreeHost(memory), what, "cudaFreeHost", freed);
    if (status.ok()) claim.given_up.pop_back();
  }
  if (status.ok()) {
    status = CudaStatus(
        cudaHostAlloc(&claim.memory, static_cast<size_t>(claim.bytes),
                      cudaHostAllocPortable),
        what, "cudaHostAlloc", claim.bytes);
  }
  return status;
}

absl::StatusOr<Buffer> PinnedPool::Take(absl::string_view what, int64_t bytes,
                                        absl::Duration timeout) {
  // An empty buffer needs no pinned memory.
  if (bytes == 0) return Buffer();
  const int64_t rounded = RoundedUp(bytes);
  Claim claim;
  {
    MutexLock lock(&mu_);
    if (bytes < 0 || rounded > bytes_max_) {
      return InvalidArgumentError(
          what, ": ", bytes,
          " bytes of pinned memory are needed, the limit is ", bytes_max_);
    }
    const auto has_room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return used_ + rounded <= bytes_max_;
    };
    if (!mu_.AwaitWithTimeout(has_room, timeout)) {
      return DeadlineExceededError(what, ": no ", bytes,
                                   " bytes of pinned memory after ",
                                   absl::FormatDuration(timeout), ": ", used_,
                                   " of ", bytes_max_, " are in use");
    }
    claim = MakeClaim(rounded);
  }
  // Pins memory without the lock, because that takes long.
  const absl::Status fulfilled = Fulfil(what, claim);
  if (!fulfilled.ok()) {
    MutexLock lock(&mu_);
    // Takes the reservation back.
    used_ -= claim.bytes;
    pinned_ -= claim.bytes;
    for (const auto& kept : claim.given_up) {
      pinned_ += kept.first;
      free_.insert(kept);
    }
    return fulfilled;
  }
  // The buffer keeps the pool alive until the memory is given back.
  return Buffer::Borrow(
             claim.memory, claim.bytes,
             [pool = shared_from_this(), memory = claim.memory,
              taken = claim.bytes] { pool->GiveBack(memory, taken); })
      .Slice(0, bytes);
}

void PinnedPool::GiveBack(void* memory, int64_t bytes) {
  MutexLock lock(&mu_);
  used_ -= bytes;
  free_.emplace(bytes, memory);
}

}  // namespace nereus
