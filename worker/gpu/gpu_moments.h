#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/public/client_report.h"

namespace nereus {

// Begins and ends of the spans of a GPU, each of them a CUDA event that records
// when its stream reached it. Not thread-safe. All functions must be called
// with the events' device as the current one.
class GpuMoments {
 public:
  // The device of the events must be the current one here, too.
  ~GpuMoments() { Clear(); }
  GpuMoments() = default;
  GpuMoments(GpuMoments&& other) noexcept
      : moments_(std::exchange(other.moments_, {})) {}
  GpuMoments& operator=(GpuMoments&& other) noexcept {
    moments_.swap(other.moments_);
    return *this;
  }

  // Returns a new event that records the time at this point of `stream`. The
  // caller destroys it.
  static absl::StatusOr<cudaEvent_t> Record(cudaStream_t stream);

  // Notes that a span begins, or ends, at this point of `stream`. An end
  // belongs to the last begin of its kind, and gives the span its layer. A
  // begin without an end is ignored.
  absl::Status Note(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
                    cudaStream_t stream);
  // Forgets all moments.
  void Clear();

  // Number of moments.
  size_t size() const { return moments_.size(); }
  // True if the GPU has reached all moments, or one of them has failed.
  bool AreReached() const;

  // Returns the spans as times since the first moment, or since the event
  // `since`, in the order of their ends. Waits for the GPU, or with `waits` ==
  // false leaves out moments that it has not reached.
  absl::StatusOr<std::vector<GpuSpan>> Spans() const;
  absl::StatusOr<std::vector<GpuSpan>> SpansSince(cudaEvent_t since,
                                                  bool waits) const;

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

  std::vector<Moment> moments_;  // In the order of the calls of Note.
};

}  // namespace nereus
