#include "worker/measure/step_times.h"

#include <algorithm>
#include <utility>

namespace nereus {

namespace {

// Share of the backward pass in a step's computing, used if nothing else is
// known.
constexpr double kBackwardShare = 2.0 / 3;

template <typename Get>
absl::Duration MedianOf(size_t count, Get get) {
  std::vector<absl::Duration> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) values.push_back(get(i));
  const auto middle = values.begin() + static_cast<int64_t>(count / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

StepTimes::StepTimes(absl::Span<const LayerSpec> layers)
    : layers_(layers.size()) {
  for (const LayerTime& time :
       SplitCompute(layers, absl::Seconds(1), /*backward_share=*/1)) {
    operations_.push_back(absl::ToDoubleSeconds(time.backward));
  }
}

void StepTimes::OnBegin(absl::Time now) {
  if (step_.has_value() && step_->pushed == layers_) {
    step_->took = now - step_->began;
    if (++steps_seen_ > kStepsIgnored) {
      Resolve(*step_);
      steps_.push_back(*std::move(step_));
      if (steps_.size() > kStepsMax) steps_.pop_front();
    }
  }
  step_.emplace();
  step_->began = now;
  step_->mark = now;
  step_->times.resize(layers_);
}

void StepTimes::OnWait(int layer, absl::Time from, absl::Time to) {
  if (!step_.has_value() || step_->pushed == layers_) return;
  // Ignores a wait that began before the last event: another thread of the
  // caller has computed meanwhile.
  if (from < step_->mark) return;
  const absl::Duration computed = from - step_->mark;
  step_->mark = to;
  if (step_->first_pushed.has_value()) {
    step_->before += computed;
    return;
  }
  // Computing before the first wait counts for the layer of that wait.
  const int whose = step_->layer.value_or(layer);
  step_->times[whose].forward += computed;
  step_->layer = layer;
}

void StepTimes::OnTurn(absl::Time from, absl::Time to) {
  if (!step_.has_value()) return;
  step_->began += to - from;
  step_->mark += to - from;
}

void StepTimes::OnPush(int layer, absl::Time now) {
  if (!step_.has_value() || step_->pushed == layers_) return;
  const absl::Duration computed =
      std::exchange(step_->before, absl::ZeroDuration()) +
      std::max(now - step_->mark, absl::ZeroDuration());
  step_->mark = std::max(now, step_->mark);
  ++step_->pushed;
  if (step_->first_pushed.has_value()) {
    step_->times[layer].backward = computed;
  } else {
    step_->first_pushed = layer;
    step_->first_interval = computed;
  }
}

void StepTimes::Resolve(TimedStep& step) const {
  absl::Duration forward;
  absl::Duration backward;
  for (const LayerTime& time : step.times) {
    forward += time.forward;
    backward += time.backward;
  }
  const absl::Duration both = step.first_interval;
  absl::Duration& first = step.times[*step.first_pushed].backward;
  if (step.layer.has_value()) {
    // The caller waited layer by layer. All forwards are known except that of
    // the last layer. The interval of that forward and the first backward is
    // split in the proportion of the other forwards and backwards.
    const absl::Duration known = forward + backward;
    const double share = known > absl::ZeroDuration()
                             ? absl::FDivDuration(backward, known)
                             : kBackwardShare;
    first = both * share;
    step.times[*step.layer].forward += both - first;
    return;
  }
  // The caller waited for all layers at the end of the last step. The first
  // backward is estimated by the layer's share of the operations. The rest is
  // the forward pass, which is divided among the layers in the proportion of
  // their backwards.
  const double operations = operations_[*step.first_pushed];
  const double others = 1 - operations;
  first = others > 0 ? std::min(both, backward * (operations / others))
                     : both * kBackwardShare;
  forward = both - first;
  backward += first;
  for (LayerTime& time : step.times) {
    time.forward = backward > absl::ZeroDuration()
                       ? forward * absl::FDivDuration(time.backward, backward)
                       : forward / static_cast<int64_t>(layers_);
  }
}

std::vector<LayerTime> StepTimes::times() const {
  std::vector<LayerTime> times(layers_);
  for (size_t layer = 0; layer < layers_; ++layer) {
    times[layer].forward = MedianOf(steps_.size(), [&](size_t step) {
      return steps_[step].times[layer].forward;
    });
    times[layer].backward = MedianOf(steps_.size(), [&](size_t step) {
      return steps_[step].times[layer].backward;
    });
  }
  return times;
}

absl::Duration StepTimes::step_time() const {
  return MedianOf(steps_.size(),
                  [&](size_t step) { return steps_[step].took; });
}

absl::Duration& StepPhases::SumOf(SpanKind kind) {
  if (kind == SpanKind::kForward) return sums_.times.forward;
  if (kind == SpanKind::kBackward) return sums_.times.backward;
  if (kind == SpanKind::kTurn) return sums_.times.turn;
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

void StepPhases::OnTurn(absl::Time from, absl::Time to) {
  Add(from, has_pushed_ ? SpanKind::kBackward : SpanKind::kForward,
      /*layer=*/-1);
  Add(to, SpanKind::kTurn, /*layer=*/-1);
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
