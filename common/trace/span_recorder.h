#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/protocol/frame.h"
#include "common/protocol/membership.h"
#include "common/protocol/span.h"

namespace nereus {

// Keeps the spans of one process in the steps of a trace. Without a trace it
// keeps nothing, and is_on and Covers cost one atomic read. Thread-safe.
class SpanRecorder {
 public:
  // True while a trace is under way, from Begin to Take.
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  // True if a trace is under way that has the step or round `round`.
  bool Covers(int64_t round) const {
    return is_on() && round >= first_.load(std::memory_order_relaxed) &&
           round <= last_.load(std::memory_order_relaxed);
  }

  // Begins to keep spans, and drops those of an earlier trace. An order of the
  // trace under way changes its steps, and drops spans of other steps.
  void Begin(const TraceOrder& order) ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps spans. If there are more than TraceOrder::spans_max, keeps the first
  // ones and counts the others; but as long as all steps are traced, because
  // the steps are not chosen yet, drops earlier steps instead.
  void Add(absl::Span<const Span> spans) ABSL_LOCKS_EXCLUDED(mu_);

  // Spans of a trace.
  struct Taken {
    std::vector<Span> spans;
    int64_t lost = 0;  // Number of spans that were not kept.
  };
  // Ends the trace, and returns its spans.
  Taken Take() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Drops spans of other steps than those of the trace.
  void DropOthers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<bool> on_ = false;
  std::atomic<int64_t> first_ = 0;  // Steps of the trace.
  std::atomic<int64_t> last_ = 0;
  Mutex mu_;
  uint64_t trace_ ABSL_GUARDED_BY(mu_) = 0;  // TraceOrder::trace.
  int64_t spans_max_ ABSL_GUARDED_BY(mu_) = 0;
  Taken taken_ ABSL_GUARDED_BY(mu_);
  // Largest round of spans that were dropped or not kept.
  int64_t dropped_round_ ABSL_GUARDED_BY(mu_) = kInitialRound - 1;
};

}  // namespace nereus
