#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/compute/bad_result_cuda.h"
#include "common/device/device_memory.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/protocol/outbox.h"
#include "common/protocol/replica_sample.h"
#include "common/tensor/buffer.h"
#include "common/tensor/device_layer.h"
#include "common/tensor/value_range.h"
#include "worker/public/gpu.h"

namespace nereus {

// Host copy of one layer's parameters and optimizer state, which the host
// client reads and writes. The copy is in pinned memory; the state is in other
// memory if no pinned memory is left. If the GPU updates the parameters, by the
// caller's optimizer or by Update, each step makes the copy outdated. The
// mirror copies the new values to the host only when the host client reads
// them. That is seldom: for a worker that joins, for a checkpoint, and for a
// new plan. For a layer on the host, the copy is the caller's memory itself.
//
// Thread-safe. Uses host memory for the parameters and the state; after
// MakeState, also GPU memory for the state.
class GpuMirror final : public DeviceLayer,
                        public std::enable_shared_from_this<GpuMirror> {
 public:
  // Makes the mirror. The host copy gets the parameters that a layer on the GPU
  // has at this point of `stream`, and zeros as its state. `stager`: not owned;
  // must outlive this. `bad`: a BadResult in pinned memory. Errors:
  // kInvalidArgument, the layer's parameters or state are null; those of
  // Stager::CheckPointer, Stager::CopyOut and PinnedPool::Take.
  static absl::StatusOr<std::shared_ptr<GpuMirror>> Create(
      LayerBinding layer, Stager* stager, std::shared_ptr<PinnedPool> pool,
      Buffer bad, cudaStream_t stream);

  bool is_on_host() const { return layer_.on_host; }
  // Memory of the host copies of the parameters, and of the state of the
  // caller's optimizer.
  const Buffer& parameters() const { return parameters_; }
  const Buffer& state() const { return callers_state_; }

  // Notes that the GPU has newer values once it reaches this point of `stream`.
  // The next Await copies them to the host.
  absl::Status Outdate(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Notes that the host client has written new values to the host copy. The
  // next Return copies them to the GPU.
  void NoteFetched() ABSL_LOCKS_EXCLUDED(mu_);
  // If NoteFetched was called since the last Return, queues a copy of all
  // values from the host to the GPU. Work that is queued on `stream` after this
  // call sees the new values. After an error the next call copies them.
  absl::Status Return(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Queues a step of the job's optimizer on the stream Stager::in().
  // `gradient`: device memory, one value for each parameter that is updated; it
  // is read when that stream reaches the step. Errors: those of CUDA, the error
  // of MakeState, and that of CheckResults.
  absl::Status Update(const UpdateParameters& update, const float* gradient)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Queues a look at a result in device memory, on the stream Stager::in(): its
  // `count` values are those of `check`. Errors: those of CUDA, and of
  // CheckResults.
  absl::Status Look(const float* values, int64_t count,
                    const ValueCheck& check);
  // Returns an error, with the layer, the step and the element, if a kernel
  // that has run found a NaN or an infinity in a result that the job checks
  // (UpdateParameters::check, Look). Does not wait for kernels that are queued.
  // Errors: kAborted; those of CUDA.
  absl::Status CheckResults();

  // Queues the copy of the sampled parameters of the GPU to `place`, pinned
  // memory, one run after the other. The copy is queued on Stager::in(), so it
  // comes before all later updates: those of this mirror are queued there too,
  // and the caller's updates follow a point of that stream (Land). Returns
  // `place` with its arrival. Errors: those of Stager::CopyRunsOut.
  absl::StatusOr<Buffer> Sample(const SampledElements& sampled,
                                const Buffer& place) ABSL_LOCKS_EXCLUDED(mu_);

  // Queues the copy of a part of the parameters to the GPU, while other parts
  // still arrive on the host. Land follows for the rest. Returns false without
  // a copy if queueing it fails, if the last copy of Land has failed, or if the
  // GPU has newer values.
  bool LandPart(ValueRange part) ABSL_LOCKS_EXCLUDED(mu_);

  // Queues the copy of the `changed` parameters to the GPU, unless the GPU has
  // updated the parameters itself. Returns the point at which the GPU has the
  // new values. Errors: those of Stager::CopyIn. After an error the next call
  // of Land copies all parameters.
  absl::StatusOr<Stager::Point> Land(absl::Span<const ValueRange> changed)
      ABSL_LOCKS_EXCLUDED(mu_);

  // IsThere and Await ignore `bytes` and concern all values. IsThere returns
  // true if the host copy is not outdated. Await copies the values to the host
  // if the host copy is outdated, and returns the error of CheckResults.
  bool IsThere(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Await(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the copies of the last Land or Return, and all copies before
  // them, have read the host copy. Does not wait for a later LandPart: the host
  // may still write other parts of the same round.
  void AwaitUnread() override ABSL_LOCKS_EXCLUDED(mu_);

  Buffer Allocate(int64_t bytes) override;
  Buffer MakeState(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // State of the caller's optimizer, or of the job's optimizer.
  struct State {
    Buffer on_host;              // Host copy, pinned if possible.
    float* on_device = nullptr;  // Null: there is no state.
    absl::Status error;          // Error of MakeState.
  };

  GpuMirror(LayerBinding layer, Stager* stager,
            std::shared_ptr<PinnedPool> pool, Buffer bad);

  // Returns where kernels note values of `check`; null without a check.
  NoteBadResult NoteOf(const std::optional<ValueCheck>& check) const;

  // Queues the copies of the state and the parameters to the GPU. Returns the
  // point at which they are there, and makes `stream` wait for this point.
  absl::StatusOr<Stager::Point> CopyBack(const State& state,
                                         cudaStream_t stream);
  // Makes the state of the job's optimizer on the GPU, zeroed.
  absl::Status MakeDeviceState(int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues the kernel of a step of the optimizer. `at`: index in the layer of
  // the first value that is updated.
  absl::Status Apply(const UpdateParameters& update, int64_t at,
                     const float* gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Memory of the layer, on the GPU or the host.
  const LayerBinding layer_;
  const std::string what_;                  // Name for messages.
  Stager* const stager_;                    // Not owned.
  const std::shared_ptr<PinnedPool> pool_;  // Memory of the host copies.
  const Buffer bad_;                        // A BadResult, in pinned memory.
  Buffer parameters_;                       // Pinned memory, or the caller's.
  // State of the caller's optimizer: memory of Allocate, or the caller's.
  Buffer callers_state_;

  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_);
  // Memory of the state of the job's optimizer on the GPU.
  DeviceMemory jobs_state_ ABSL_GUARDED_BY(mu_);
  // True if the host copy has values that Return must copy to the GPU.
  bool is_fetched_ ABSL_GUARDED_BY(mu_) = false;
  // True if the GPU has newer values than the host copy.
  bool is_outdated_ ABSL_GUARDED_BY(mu_) = false;
  // Point at which the GPU has the newest values.
  Stager::Point updated_ ABSL_GUARDED_BY(mu_);
  // Number of calls of Outdate and Update.
  int64_t updates_ ABSL_GUARDED_BY(mu_) = 0;
  // Point at which the copies of the last Land or Return have ended.
  Stager::Point read_ ABSL_GUARDED_BY(mu_);
  // True if a copy of Land has failed, or is being queued: the GPU may lack
  // changes.
  bool is_behind_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace nereus
