#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"
#include "common/tensor/value_range.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// One layer's parameters, in pinned memory, and state, for the client to read
// and write. Where the caller's optimizer updates them on the GPU, they are
// fetched from there when the client comes to read them, which is seldom.
// Of a layer on the host it is the caller's memory itself. Thread-safe.
class GpuMirror final : public Arrival {
 public:
  // Fetches what the layer has when `stream` has come to this point. `stager`
  // must outlive it. Errors: of CheckPointer and CopyOut; of `pool`.
  static absl::StatusOr<std::shared_ptr<GpuMirror>> Create(
      GpuLayerBinding layer, Stager* stager, PinnedPool& pool,
      cudaStream_t stream);

  const Buffer& parameters() const { return parameters_; }
  const Buffer& state() const { return state_; }

  // The GPU has others once it comes to this point of `stream`.
  absl::Status Outdate(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // The client has written others, which are to go to the GPU.
  void NoteFetched() ABSL_LOCKS_EXCLUDED(mu_);
  // What is queued on `stream` from now on finds them there, if there are any.
  absl::Status Return(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Copies the parameters that have changed to the GPU, now; returns when they
  // are there. Errors: of Stager::CopyIn; then all have changed for the next.
  absl::StatusOr<Stager::Point> Land(absl::Span<const ValueRange> changed)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Of all of them, whatever is asked for.
  bool IsThere(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Await(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  // By copies to the GPU.
  void AwaitUnread() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  GpuMirror(GpuLayerBinding layer, Stager* stager);

  // What is queued on the stager's in() by now reads this.
  absl::Status NoteReading() ABSL_LOCKS_EXCLUDED(mu_);

  const GpuLayerBinding layer_;
  const std::string what_;
  Stager* const stager_;
  Buffer parameters_;
  Buffer state_;

  Mutex mu_;
  bool fetched_ ABSL_GUARDED_BY(mu_) = false;
  bool outdated_ ABSL_GUARDED_BY(mu_) = false;
  Stager::Point updated_ ABSL_GUARDED_BY(mu_);
  int64_t updates_ ABSL_GUARDED_BY(mu_) = 0;
  Stager::Point read_ ABSL_GUARDED_BY(mu_);
  bool is_behind_ ABSL_GUARDED_BY(mu_) = false;  // The GPU; Land has failed.
};

}  // namespace nereus
