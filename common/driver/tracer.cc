#include "common/driver/tracer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/clock.h"

namespace nereus {
namespace {

// Number of questions of one comparison of clocks.
constexpr int kQuestions = 8;

}  // namespace

bool Tracer::OnMessage(const CoordinatorMessage& message) {
  if (const auto* order = std::get_if<TraceOrder>(&message)) {
    OnOrder(*order);
  } else if (const auto* answer = std::get_if<ClockAnswer>(&message)) {
    OnAnswer(*answer);
  } else if (const auto* end = std::get_if<TraceEnd>(&message)) {
    OnEnd(*end);
  } else {
    return false;
  }
  return true;
}

void Tracer::OnOrder(const TraceOrder& order) {
  const bool is_new = [&] {
    MutexLock lock(&mu_);
    return trace_ != order.trace;
  }();
  if (is_new) Drop();
  recorder_.Begin(order);
  {
    MutexLock lock(&mu_);
    trace_ = order.trace;
    if (!is_new) return;
    questions_left_ = kQuestions;
    is_ending_ = false;
    best_[0].reset();
    best_[1].reset();
  }
  Ask(order.trace);
}

void Tracer::SetSource(SpanSource* source) {
  source_ = source;
  source_->SetRecorder(&recorder_);
}

void Tracer::Ask(uint64_t trace) { send_(ClockQuestion{trace, SteadyNow()}); }

void Tracer::OnAnswer(const ClockAnswer& answer) {
  const absl::Time now = SteadyNow();
  std::vector<ClockSample> clock;
  {
    MutexLock lock(&mu_);
    if (answer.trace != trace_ || questions_left_ == 0) return;
    --questions_left_;
    const absl::Duration half = (now - answer.asked) / 2;
    const absl::Time middle = answer.asked + half;
    std::optional<ClockSample>& best = best_[is_ending_ ? 1 : 0];
    if (!best.has_value() || half < best->error) {
      best = ClockSample{middle, answer.answered - middle, half};
    }
    if (questions_left_ == 0 && !is_ending_) return;
    if (questions_left_ == 0) {
      for (const auto& sample : best_) {
        if (sample.has_value()) clock.push_back(*sample);
      }
    }
  }
  if (clock.empty()) return Ask(answer.trace);
  SendSpans(answer.trace, clock);
}

void Tracer::Drop() {
  {
    MutexLock lock(&mu_);
    trace_ = 0;
    questions_left_ = 0;
  }
  recorder_.Take();
  if (source_ != nullptr) source_->AddSpans();  // So that it forgets them.
}

void Tracer::OnEnd(const TraceEnd& end) {
  {
    MutexLock lock(&mu_);
    if (end.trace != trace_ || (is_ending_ && !end.drops)) return;
    questions_left_ = kQuestions;
    is_ending_ = true;
  }
  if (end.drops) return Drop();
  Ask(end.trace);
}

void Tracer::SendSpans(uint64_t trace, const std::vector<ClockSample>& clock) {
  if (source_ != nullptr) source_->AddSpans();
  const SpanRecorder::Taken taken = recorder_.Take();
  auto from = taken.spans.begin();
  do {
    const auto count =
        std::min<int64_t>(taken.spans.end() - from, kTracePartSpansMax);
    TracePart part;
    part.trace = trace;
    part.spans.assign(from, from + count);
    from += count;
    part.is_last = from == taken.spans.end();
    if (part.is_last) {
      part.lost = taken.lost;
      part.clock = clock;
    }
    send_(std::move(part));
  } while (from != taken.spans.end());
}

}  // namespace nereus
