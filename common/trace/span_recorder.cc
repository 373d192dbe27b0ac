#include "common/trace/span_recorder.h"

#include <algorithm>
#include <utility>

namespace nereus {

void SpanRecorder::Begin(const TraceOrder& order) {
  MutexLock lock(&mu_);
  if (!on_ || order.trace != trace_) taken_ = {};
  trace_ = order.trace;
  spans_max_ = order.spans_max;
  first_ = order.first_step;
  last_ = order.last_step;
  DropOthers();
  on_ = true;
}

void SpanRecorder::Add(absl::Span<const Span> spans) {
  MutexLock lock(&mu_);
  if (!on_) return;
  const auto count = static_cast<int64_t>(spans.size());
  const int64_t kept =
      std::min(count, spans_max_ - static_cast<int64_t>(taken_.spans.size()));
  taken_.spans.insert(taken_.spans.end(), spans.begin(), spans.begin() + kept);
  taken_.lost += count - kept;
}

SpanRecorder::Taken SpanRecorder::Take() {
  MutexLock lock(&mu_);
  DropOthers();
  on_ = false;
  return std::exchange(taken_, {});
}

void SpanRecorder::DropOthers() {
  std::erase_if(taken_.spans, [this](const Span& span) {
    return span.round < first_ || span.round > last_;
  });
}

}  // namespace nereus
