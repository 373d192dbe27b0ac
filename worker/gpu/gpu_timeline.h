#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// When a GPU did what, by events that streams come to. Thread-safe.
class GpuTimeline {
 public:
  // `is_kept`: else it notes nothing.
  GpuTimeline(int device, bool is_kept) : device_(device), is_kept_(is_kept) {}
  ~GpuTimeline();
  GpuTimeline(const GpuTimeline&) = delete;
  GpuTimeline& operator=(const GpuTimeline&) = delete;

  // A span of a kind begins, or ends, when `stream` comes to this point. Spans
  // of a kind follow each other. Errors end the timeline, and are Read's.
  void Begin(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (is_kept_) Note(kind, layer, step, /*begins=*/true, stream);
  }
  void End(GpuSpan::Kind kind, int layer, int64_t step, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (is_kept_) Note(kind, layer, step, /*begins=*/false, stream);
  }

  // The first spans, some ten thousand, since the first began, once the GPU has
  // come to the ends of all; by kind, in order. Errors: kFailedPrecondition, it
  // is not kept; what CUDA says.
  absl::StatusOr<std::vector<GpuSpan>> Read() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Moment {
    GpuSpan::Kind kind;
    int layer = 0;
    int64_t step = 0;
    bool begins = false;
    cudaEvent_t event = nullptr;
  };

  void Note(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
            cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  const int device_;
  const bool is_kept_;
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::vector<Moment> moments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
