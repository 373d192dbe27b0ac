#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"
#include "common/tensor/value_range.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Host copy of one layer's parameters and optimizer state, which the host
// client reads and writes. The parameters' copy is in pinned memory. Where the
// caller's optimizer updates the parameters on the GPU, the copy becomes
// outdated in each step; it is fetched only when the host client reads it,
// which is seldom (for a worker that joins, and for a checkpoint). For a layer
// on the host, the copy is the caller's memory itself.
//
// Thread-safe. Memory: the parameters, and the state, once.
class GpuMirror final : public Arrival {
 public:
  // Makes the mirror, with the values that the layer has at this point of
  // `stream`. `stager`: not owned; must outlive this. Errors: those of
  // Stager::CheckPointer, Stager::CopyOut and PinnedPool::Take.
  static absl::StatusOr<std::shared_ptr<GpuMirror>> Create(
      GpuLayerBinding layer, Stager* stager, PinnedPool& pool,
      cudaStream_t stream);

  // Memory of the host copies.
  const Buffer& parameters() const { return parameters_; }
  const Buffer& state() const { return state_; }

  // The GPU has other values once it reaches this point of `stream`. So the
  // next reader fetches them.
  absl::Status Outdate(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // The host client has written other values to the copy. Return then brings
  // them to the GPU.
  void NoteFetched() ABSL_LOCKS_EXCLUDED(mu_);
  // Copies values that the host client has written to the GPU, if there are
  // any. Work that is queued on `stream` after the call sees them.
  absl::Status Return(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Copies the `changed` parameters to the GPU. Returns the point at which they
  // are there. Errors: those of Stager::CopyIn. After an error the next call
  // copies all parameters.
  absl::StatusOr<Stager::Point> Land(absl::Span<const ValueRange> changed)
      ABSL_LOCKS_EXCLUDED(mu_);

  // IsThere and Await concern all values, for any number of bytes. Await
  // fetches the values if the copy is outdated.
  bool IsThere(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Await(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no copy to the GPU reads the parameters.
  void AwaitUnread() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  GpuMirror(GpuLayerBinding layer, Stager* stager);

  // Records that the work queued on the stager's in() reads the parameters.
  absl::Status NoteReading() ABSL_LOCKS_EXCLUDED(mu_);

  // Memory of the layer, on the GPU or the host.
  const GpuLayerBinding layer_;
  const std::string what_;  // Name for messages.
  Stager* const stager_;    // Not owned.
  Buffer parameters_;       // Pinned memory, or the caller's.
  Buffer state_;            // Host memory.

  Mutex mu_;
  // True if Return has values to bring to the GPU.
  bool fetched_ ABSL_GUARDED_BY(mu_) = false;
  // True if the GPU has newer values than the copy.
  bool outdated_ ABSL_GUARDED_BY(mu_) = false;
  // Point at which the GPU has the newest values.
  Stager::Point updated_ ABSL_GUARDED_BY(mu_);
  // Number of calls of Outdate.
  int64_t updates_ ABSL_GUARDED_BY(mu_) = 0;
  // Point at which no copy to the GPU reads the parameters.
  Stager::Point read_ ABSL_GUARDED_BY(mu_);
  // True if a copy of Land has failed, or is being queued: the GPU may lack
  // changes.
  bool is_behind_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace nereus
