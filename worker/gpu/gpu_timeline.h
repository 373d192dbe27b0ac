#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Records when a GPU computed and copied, by CUDA events in the streams.
// Thread-safe. Bounded: after 2^16 events it records no more.
class GpuTimeline {
 public:
  // `is_kept`: false makes Begin and End do nothing.
  GpuTimeline(int device, bool is_kept) : device_(device), is_kept_(is_kept) {}
  ~GpuTimeline();
  GpuTimeline(const GpuTimeline&) = delete;
  GpuTimeline& operator=(const GpuTimeline&) = delete;

  // Begins, or ends, a span when `stream` reaches this point. An End belongs to
  // the last Begin of its kind, and gives the span its layer. A Begin without
  // an End is ignored. After an error nothing more is recorded, and Read
  // returns the error.
  void Begin(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (is_kept_) Note(kind, layer, step, /*begins=*/true, stream);
  }
  void End(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (is_kept_) Note(kind, layer, step, /*begins=*/false, stream);
  }

  // Returns all recorded spans, in the order of the calls of End. Waits until
  // the GPU has reached all recorded begins and ends. Errors:
  // kFailedPrecondition, the timeline is not kept; errors of CUDA.
  absl::StatusOr<std::vector<GpuSpan>> Read() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Begin or end of a span.
  struct Moment {
    // Kind, layer and step of the span.
    GpuSpan::Kind kind;
    int layer = 0;
    int64_t step = 0;
    bool begins = false;          // False: the span ends.
    cudaEvent_t event = nullptr;  // Recorded in the stream.
  };

  // Records an event for a begin or an end.
  void Note(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
            cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Device on which the events are made.
  const int device_;
  const bool is_kept_;  // See the constructor.
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // First error.
  // Begins and ends, in the order of the calls.
  std::vector<Moment> moments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
