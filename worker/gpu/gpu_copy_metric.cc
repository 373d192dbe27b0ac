#include "worker/gpu/gpu_copy_metric.h"

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

constexpr char kWhat[] = "copy metric";

// Number of moments of a step after which it is recorded no further.
constexpr size_t kMomentsMax = 1 << 14;

// A step is over when this number of steps has begun after it: its copies to
// the GPU may last until the forward pass of the next step.
constexpr int64_t kStepsAfter = 2;

CopyTimes operator*(const CopyTimes& times, int64_t factor) {
  return {times.hidden * factor, times.exposed * factor};
}

}  // namespace

GpuCopyMetric::~GpuCopyMetric() {
  const DeviceScope scope(device_, kWhat);
  MutexLock lock(&mu_);
  moments_.Clear();
}

// A job that goes back to a checkpoint does the recorded step again. Drops what
// was recorded of it.
void GpuCopyMetric::OnStep(int64_t step) {
  MutexLock lock(&mu_);
  ++steps_;
  if (step <= step_) {
    const DeviceScope scope(device_, kWhat);
    moments_.Clear();
    step_ = kNoStep;
    is_wanted_ = true;
  }
  if (!is_wanted_) return;
  is_wanted_ = false;
  step_ = step;
  recorded_ = steps_;
}

void GpuCopyMetric::OnMoment(GpuSpan::Kind kind, int layer, int64_t step,
                             bool begins, cudaStream_t stream) {
  MutexLock lock(&mu_);
  if (!Records(step) || moments_.size() >= kMomentsMax) return;
  const DeviceScope scope(device_, kWhat);
  // Without the moment, the metric is a little too small.
  moments_.Note(kind, layer, step, begins, stream).IgnoreError();
}

void GpuCopyMetric::Count() {
  const DeviceScope scope(device_, kWhat);
  GpuMoments moments;
  int64_t times = 0;
  {
    MutexLock lock(&mu_);
    if (step_ == kNoStep) {
      is_wanted_ = true;
      return;
    }
    if (steps_ < recorded_ + kStepsAfter || !moments_.AreReached()) return;
    moments = std::exchange(moments_, {});
    times = recorded_ - std::exchange(counted_, recorded_);
    step_ = kNoStep;
    is_wanted_ = true;
  }
  const auto spans = moments.Spans();
  if (!spans.ok()) return;
  MutexLock lock(&mu_);
  out_ += CopyTimesOf(*spans, GpuSpan::Kind::kCopyOut) * times;
  in_ += CopyTimesOf(*spans, GpuSpan::Kind::kCopyIn) * times;
}

void GpuCopyMetric::AddTo(MetricList& metrics) {
  Count();
  MutexLock lock(&mu_);
  const auto add = [&](const std::string& direction, const std::string& hidden,
                       absl::Duration time) {
    metrics.AddCounter("nereus_gpu_copy_seconds_total",
                       "Time of the GPU's copies of gradients to the host "
                       "(out) and of results to the GPU (in), while it also "
                       "computed (hidden) and while it did not; estimated from "
                       "one step after each reading",
                       absl::ToDoubleSeconds(time),
                       {{"direction", direction}, {"hidden", hidden}});
  };
  add("out", "true", out_.hidden);
  add("out", "false", out_.exposed);
  add("in", "true", in_.hidden);
  add("in", "false", in_.exposed);
}

}  // namespace nereus
