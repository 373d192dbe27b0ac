#include "worker/measure/step_phases.h"

namespace nereus {

absl::Duration& StepPhases::SumOf(SpanKind kind) {
  if (kind == SpanKind::kForward) return sums_.times.forward;
  if (kind == SpanKind::kBackward) return sums_.times.backward;
  return kind == SpanKind::kOther ? sums_.times.other : sums_.times.waiting;
}

// Calls of several threads may overlap: then `now` can be before mark_.
void StepPhases::Add(absl::Time now, SpanKind kind, int layer) {
  if (!mark_.has_value() || now <= *mark_) return;
  SumOf(kind) += now - *mark_;
  if (recorder_ != nullptr && recorder_->Covers(step_)) {
    Span span;
    span.kind = kind;
    span.layer = layer;
    span.round = step_;
    span.begin = *mark_;
    span.end = now;
    recorder_->Add({&span, 1});
  }
  mark_ = now;
}

void StepPhases::OnBegin(int64_t step, absl::Time from, absl::Time to) {
  Add(from, has_pushed_ ? SpanKind::kOther : SpanKind::kForward, /*layer=*/-1);
  step_ = step;
  Add(to, SpanKind::kWait, /*layer=*/-1);
  if (!mark_.has_value()) mark_ = to;
  has_pushed_ = false;
  ++sums_.steps;
  if (begun_at_.has_value()) steps_.Add(to - *begun_at_);
  begun_at_ = to;
}

void StepPhases::OnWait(int layer, absl::Time from, absl::Time to) {
  Add(from, has_pushed_ ? SpanKind::kOther : SpanKind::kForward, /*layer=*/-1);
  Add(to, SpanKind::kWait, layer);
}

void StepPhases::OnPush(int layer, absl::Time now) {
  if (has_pushed_) {
    Add(now, SpanKind::kBackward, layer);
  } else {
    Add(now, SpanKind::kForward, /*layer=*/-1);
  }
  has_pushed_ = true;
}

}  // namespace nereus
