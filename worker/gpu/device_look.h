#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/device/device_memory.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Looks through values where they are, in a GPU's memory. Thread-safe.
class DeviceLook {
 public:
  // What it takes of `pool`.
  static constexpr int64_t kPinnedBytes = 16;

  // `stager` must outlive it. Errors: of DeviceMemory and PinnedPool.
  static absl::StatusOr<std::unique_ptr<DeviceLook>> Create(Stager* stager,
                                                            PinnedPool& pool);

  // The first of `count` float32 that is NaN or infinite. They are there; waits
  // for the GPU. Errors: what CUDA says, with `what`.
  absl::StatusOr<NotFinite> FindNotFinite(absl::string_view what,
                                          const float* values, int64_t count)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // In pinned memory.
  struct Found {
    int64_t index;
    float value;
  };
  static_assert(sizeof(Found) <= kPinnedBytes);

  DeviceLook(Stager* stager, DeviceMemory first, Buffer found)
      : stager_(stager), first_(std::move(first)), memory_(std::move(found)) {}

  absl::Status Find(absl::string_view what, const float* values, int64_t count,
                    Found& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One of `bytes`, now.
  absl::Status Copy(absl::string_view what, const void* source, int64_t bytes,
                    void* destination, cudaMemcpyKind kind);
  absl::Status Await(absl::string_view what);

  Stager* const stager_;
  const DeviceMemory first_;
  const Buffer memory_;
  Mutex mu_;  // One looks at a time.
};

}  // namespace nereus
