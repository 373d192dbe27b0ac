#include "common/trace/span_recorder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/protocol/job_options.h"

namespace nereus {

void SpanRecorder::Begin(const TraceOrder& order) {
  MutexLock lock(&mu_);
  const bool is_new = !on_ || order.trace != trace_;
  if (is_new) taken_ = {};
  // Spans that had no room are lost only if they are of the chosen steps.
  if (is_new || dropped_round_ < order.first_step) taken_.lost = 0;
  dropped_round_ = kInitialRound - 1;
  trace_ = order.trace;
  spans_max_ = order.spans_max;
  first_ = order.first_step;
  last_ = order.last_step;
  DropOthers();
  on_ = true;
}

void SpanRecorder::Add(absl::Span<const Span> spans) {
  MutexLock lock(&mu_);
  if (!on_ || spans.empty()) return;
  const int64_t count = std::ssize(spans);
  // Earlier steps make room, as long as the steps are not chosen.
  const int64_t round = spans.front().round;
  if (last_ == kStepMax && std::ssize(taken_.spans) + count > spans_max_ &&
      !taken_.spans.empty() && taken_.spans.front().round < round) {
    taken_.lost += static_cast<int64_t>(std::erase_if(
        taken_.spans, [=](const Span& span) { return span.round < round; }));
    dropped_round_ = round - 1;
  }
  const int64_t room =
      std::max<int64_t>(0, spans_max_ - std::ssize(taken_.spans));
  const int64_t kept = std::min(count, room);
  taken_.spans.insert(taken_.spans.end(), spans.begin(), spans.begin() + kept);
  if (kept == count) return;
  taken_.lost += count - kept;
  dropped_round_ = std::max(dropped_round_, round);
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
