#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/metrics/metric_list.h"
#include "worker/gpu/gpu_moments.h"
#include "worker/measure/copy_times.h"

namespace nereus {

// Measures the metric nereus_gpu_copy_seconds_total: how long the GPU copies to
// and from the host, and for how much of this time it also computes. To record
// each copy would cost every step. So it records one step after each reading of
// the metric, and counts that step as often as steps have begun since the step
// that it recorded before. Without readings it records nothing. Thread-safe.
class GpuCopyMetric {
 public:
  explicit GpuCopyMetric(int device) : device_(device) {}
  ~GpuCopyMetric();
  GpuCopyMetric(const GpuCopyMetric&) = delete;
  GpuCopyMetric& operator=(const GpuCopyMetric&) = delete;

  // Notes that the caller begins a step.
  void OnStep(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  // True if the step is recorded.
  bool Records(int64_t step) const { return step == step_; }
  // Notes that a span of a step that is recorded begins, or ends, at this point
  // of `stream`.
  void OnMoment(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
                cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds the metric. The recorded step counts once it is over.
  void AddTo(MetricList& metrics) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Value of step_ while no step is recorded.
  static constexpr int64_t kNoStep = -1;

  // Counts the recorded step if it is over.
  void Count() ABSL_LOCKS_EXCLUDED(mu_);

  const int device_;  // Device on which the events are made.
  // Step that is recorded, or kNoStep. Changed under mu_ only.
  std::atomic<int64_t> step_ = kNoStep;
  Mutex mu_;
  // True if the next step that begins is to be recorded.
  bool is_wanted_ ABSL_GUARDED_BY(mu_) = false;
  int64_t steps_ ABSL_GUARDED_BY(mu_) = 0;  // Number of steps begun.
  // Value of steps_ at the begin of the step that is recorded, and of the one
  // that was counted last.
  int64_t recorded_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t counted_ ABSL_GUARDED_BY(mu_) = 0;
  GpuMoments moments_ ABSL_GUARDED_BY(mu_);  // Moments of that step.
  CopyTimes out_ ABSL_GUARDED_BY(mu_);       // Copies to the host so far.
  CopyTimes in_ ABSL_GUARDED_BY(mu_);        // Copies to the GPU so far.
};

}  // namespace nereus
