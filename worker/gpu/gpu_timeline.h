#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/trace/span_source.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Records when a GPU computed and copied, by CUDA events in the streams: for
// Read, if the timeline is kept, and for a trace of the job, while there is
// one. Thread-safe. Bounded: after 2^16 events it records no more.
class GpuTimeline final : public SpanSource {
 public:
  // `is_kept`: true if Read returns all spans.
  GpuTimeline(int device, bool is_kept) : device_(device), is_kept_(is_kept) {}
  ~GpuTimeline() override;
  GpuTimeline(const GpuTimeline&) = delete;
  GpuTimeline& operator=(const GpuTimeline&) = delete;

  // Begins, or ends, a span when `stream` reaches this point. An End belongs to
  // the last Begin of its kind, and gives the span its layer. A Begin without
  // an End is ignored. After an error nothing more is recorded, and Read
  // returns the error.
  void Begin(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (Records(step)) Note(kind, layer, step, /*begins=*/true, stream);
  }
  void End(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (Records(step)) Note(kind, layer, step, /*begins=*/false, stream);
  }

  // Returns all recorded spans, in the order of the calls of End. Waits until
  // the GPU has reached all recorded begins and ends. Errors:
  // kFailedPrecondition, the timeline is not kept; errors of CUDA.
  absl::StatusOr<std::vector<GpuSpan>> Read() const ABSL_LOCKS_EXCLUDED(mu_);

  void SetRecorder(SpanRecorder* recorder) override { recorder_ = recorder; }
  // Leaves out what the GPU has not reached. Forgets the spans, unless the
  // timeline is kept.
  void AddSpans() override ABSL_LOCKS_EXCLUDED(mu_);

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

  // True if a span of this step is recorded.
  bool Records(int64_t step) const {
    return is_kept_ || (recorder_ != nullptr && recorder_->Covers(step));
  }
  // Makes an event and records it in `stream`. Null after an error.
  cudaEvent_t Record(cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Compares the GPU's time with the host's, if that was not done yet.
  void SetAnchor() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the spans of all moments, as times since `since`. With `waits`,
  // waits for the GPU; otherwise leaves out moments that it has not reached.
  absl::StatusOr<std::vector<GpuSpan>> SpansSince(cudaEvent_t since,
                                                  bool waits) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Records an event for a begin or an end.
  void Note(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
            cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Device on which the events are made.
  const int device_;
  const bool is_kept_;                // See the constructor.
  SpanRecorder* recorder_ = nullptr;  // See SetRecorder.
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // First error.
  // Begins and ends, in the order of the calls.
  std::vector<Moment> moments_ ABSL_GUARDED_BY(mu_);
  // Event that the GPU has reached, and the host's time then. Null: no span of
  // the trace under way has begun.
  cudaEvent_t anchor_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::Time anchored_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
