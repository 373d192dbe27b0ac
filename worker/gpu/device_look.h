#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/device/device_memory.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Searches values in a GPU's memory for NaNs and infinities, without a copy of
// the values to the host. Thread-safe: one search runs at a time.
class DeviceLook {
 public:
  // Number of bytes that Create takes from `pool`.
  static constexpr int64_t kPinnedBytes = 16;

  // `stager`: not owned; must outlive this. Errors: those of DeviceMemory and
  // PinnedPool.
  static absl::StatusOr<std::unique_ptr<DeviceLook>> Create(Stager* stager,
                                                            PinnedPool& pool);

  // Returns the first of `count` float32 in device memory that is NaN or
  // infinite. Waits until the GPU has searched. REQUIRES: the GPU has computed
  // the values. Errors: those of CUDA, with `what`.
  absl::StatusOr<BadValue> FindTooLarge(absl::string_view what,
                                        const float* values, int64_t count)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Result of a search, in pinned memory, where the GPU writes it.
  struct Found {
    int64_t index;  // Index of the value; kNoneFound: none was found.
    float value;    // The value itself.
  };
  static_assert(sizeof(Found) <= kPinnedBytes);

  DeviceLook(Stager* stager, DeviceMemory first, Buffer found)
      : stager_(stager), first_(std::move(first)), memory_(std::move(found)) {}

  // Searches, and writes the result to `found`.
  absl::Status Find(absl::string_view what, const float* values, int64_t count,
                    Found& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for all work on the stager's side_stream().
  absl::Status Await(absl::string_view what);

  // Not owned. Its side_stream() runs the searches.
  Stager* const stager_;
  const DeviceMemory first_;  // Index that the kernel writes.
  const Buffer memory_;       // A Found, in pinned memory.
  Mutex mu_;                  // Held during a search.
};

}  // namespace nereus
