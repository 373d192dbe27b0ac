#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/metric_list.h"
#include "common/trace/span_source.h"
#include "worker/gpu/gpu_copy_metric.h"
#include "worker/gpu/gpu_moments.h"
#include "worker/public/client_report.h"

namespace nereus {

// Records when a GPU computed and copied, by CUDA events in the streams: for
// Read, if the timeline is kept, for a trace of the job, while there is one,
// and for a metric. Thread-safe. Bounded: after 2^16 events it records no more.
class GpuTimeline final : public SpanSource {
 public:
  // `is_kept`: true if Read returns all spans.
  GpuTimeline(int device, bool is_kept)
      : device_(device), is_kept_(is_kept), copies_(device) {}
  ~GpuTimeline() override;
  GpuTimeline(const GpuTimeline&) = delete;
  GpuTimeline& operator=(const GpuTimeline&) = delete;

  // Notes that the caller begins a step, and that `stream` computes from this
  // point on.
  void BeginStep(int64_t step, cudaStream_t stream) {
    step_ = step;
    copies_.OnStep(step);
    BeginComputing(stream);
  }
  // Begins, or ends, a span of computing, in the step that has begun last. The
  // span belongs to `layer`.
  void BeginComputing(cudaStream_t stream) {
    Begin(GpuSpan::Kind::kCompute, /*layer=*/0, step_, stream);
  }
  void EndComputing(int layer, cudaStream_t stream) {
    End(GpuSpan::Kind::kCompute, layer, step_, stream);
  }
  // Begins, or ends, a span when `stream` reaches this point. An End belongs to
  // the last Begin of its kind, and gives the span its layer. A Begin without
  // an End is ignored. After an error nothing more is recorded, and Read
  // returns the error.
  void Begin(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    Note(kind, layer, step, /*begins=*/true, stream);
  }
  void End(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    Note(kind, layer, step, /*begins=*/false, stream);
  }

  // Returns all recorded spans, in the order of the calls of End. Waits until
  // the GPU has reached all recorded begins and ends. Errors:
  // kFailedPrecondition, the timeline is not kept; errors of CUDA.
  absl::StatusOr<std::vector<GpuSpan>> Read() const ABSL_LOCKS_EXCLUDED(mu_);

  // Adds the metrics about the GPU.
  void AddMetrics(MetricList& metrics) { copies_.AddTo(metrics); }

  void SetRecorder(SpanRecorder* recorder) override { recorder_ = recorder; }
  // Leaves out what the GPU has not reached. Forgets the spans, unless the
  // timeline is kept.
  void AddSpans() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // True if a span of this step is recorded for Read or for a trace.
  bool Records(int64_t step) const {
    return is_kept_ || (recorder_ != nullptr && recorder_->Covers(step));
  }
  // Compares the GPU's time with the host's, if that was not done yet.
  void SetAnchor() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Records a begin or an end for all that want it.
  void Note(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
            cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_) {
    if (Records(step)) Keep(kind, layer, step, begins, stream);
    if (copies_.Records(step)) {
      copies_.OnMoment(kind, layer, step, begins, stream);
    }
  }
  // Records a begin or an end for Read and for a trace.
  void Keep(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
            cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Device on which the events are made.
  const int device_;
  const bool is_kept_;                // See the constructor.
  std::atomic<int64_t> step_ = 0;     // Step that has begun last.
  GpuCopyMetric copies_;              // Has a lock of its own.
  SpanRecorder* recorder_ = nullptr;  // See SetRecorder.
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // First error.
  GpuMoments moments_ ABSL_GUARDED_BY(mu_);   // Begins and ends.
  // Event that the GPU has reached, and the host's time then. Null: no span of
  // the trace under way has begun.
  cudaEvent_t anchor_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::Time anchored_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
