#include "worker/gpu/gpu_timeline.h"

#include <map>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

// Number of events after which recording stops.
constexpr size_t kMomentsMax = 1 << 16;
constexpr char kWhat[] = "timeline";

SpanKind KindOf(GpuSpan::Kind kind) {
  if (kind == GpuSpan::Kind::kCompute) return SpanKind::kCompute;
  return kind == GpuSpan::Kind::kCopyOut ? SpanKind::kCopyOut
                                         : SpanKind::kCopyIn;
}

}  // namespace

GpuTimeline::~GpuTimeline() {
  const DeviceScope scope(device_, kWhat);
  for (const Moment& moment : moments_) (void)cudaEventDestroy(moment.event);
  if (anchor_ != nullptr) (void)cudaEventDestroy(anchor_);
}

// With cudaEventDefault, an event records the time, unlike those of Stager.
cudaEvent_t GpuTimeline::Record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  status_ = CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDefault),
                       kWhat, "cudaEventCreateWithFlags");
  if (!status_.ok()) return nullptr;
  status_ =
      CudaStatus(cudaEventRecord(event, stream), kWhat, "cudaEventRecord");
  if (status_.ok()) return event;
  (void)cudaEventDestroy(event);
  return nullptr;
}

// Uses a stream of its own, which has no other work. So the GPU reaches the
// event at once.
void GpuTimeline::SetAnchor() {
  if (anchor_ != nullptr) return;
  cudaStream_t stream = nullptr;
  status_ =
      CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                 kWhat, "cudaStreamCreateWithFlags");
  if (!status_.ok()) return;
  anchor_ = Record(stream);
  if (anchor_ != nullptr) {
    status_ = CudaStatus(cudaEventSynchronize(anchor_), kWhat,
                         "cudaEventSynchronize");
    anchored_at_ = SteadyNow();
  }
  (void)cudaStreamDestroy(stream);
}

void GpuTimeline::Note(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
                       cudaStream_t stream) {
  MutexLock lock(&mu_);
  if (moments_.size() >= kMomentsMax || !status_.ok()) return;
  const DeviceScope scope(device_, kWhat);
  if (recorder_ != nullptr && recorder_->Covers(step)) SetAnchor();
  if (!status_.ok()) return;
  const cudaEvent_t event = Record(stream);
  if (event == nullptr) return;
  moments_.push_back({kind, layer, step, begins, event});
}

absl::StatusOr<std::vector<GpuSpan>> GpuTimeline::Read() const {
  if (!is_kept_) {
    return FailedPreconditionError(
        "no timeline is kept: set GpuOptions::timeline");
  }
  const DeviceScope scope(device_, kWhat);
  NEREUS_TRY(scope.status());
  MutexLock lock(&mu_);
  NEREUS_TRY(status_);
  if (moments_.empty()) return std::vector<GpuSpan>();
  return SpansSince(moments_.front().event, /*waits=*/true);
}

void GpuTimeline::AddSpans() {
  const DeviceScope scope(device_, kWhat);
  if (!scope.status().ok()) return;
  MutexLock lock(&mu_);
  if (anchor_ == nullptr || !status_.ok()) return;
  const auto found = SpansSince(anchor_, /*waits=*/false);
  if (found.ok()) {
    std::vector<Span> spans;
    for (const GpuSpan& each : *found) {
      Span& span = spans.emplace_back();
      span.kind = KindOf(each.kind);
      span.layer = each.layer;
      span.round = each.step;
      span.begin = anchored_at_ + each.begin;
      span.end = anchored_at_ + each.end;
    }
    recorder_->Add(spans);
  }
  // Times since an anchor are float values, so the next trace has another one.
  (void)cudaEventDestroy(anchor_);
  anchor_ = nullptr;
  if (is_kept_) return;
  for (const Moment& moment : moments_) (void)cudaEventDestroy(moment.event);
  moments_.clear();
}

absl::StatusOr<std::vector<GpuSpan>> GpuTimeline::SpansSince(cudaEvent_t since,
                                                             bool waits) const {
  std::vector<GpuSpan> spans;
  // Spans that have begun and not ended, at most one of each kind.
  std::map<GpuSpan::Kind, GpuSpan> open;
  for (const Moment& moment : moments_) {
    if (!waits && cudaEventQuery(moment.event) != cudaSuccess) continue;
    NEREUS_TRY(CudaStatus(cudaEventSynchronize(moment.event), kWhat,
                          "cudaEventSynchronize"));
    float milliseconds = 0.0f;
    NEREUS_TRY(
        CudaStatus(cudaEventElapsedTime(&milliseconds, since, moment.event),
                   kWhat, "cudaEventElapsedTime"));
    const absl::Duration at = absl::Milliseconds(milliseconds);
    if (moment.begins) {
      open[moment.kind] = {moment.kind, moment.layer, moment.step, at, at};
    } else if (const auto found = open.find(moment.kind); found != open.end()) {
      GpuSpan span = found->second;
      open.erase(found);
      span.layer = moment.layer;
      span.end = at;
      spans.push_back(span);
    }
  }
  return spans;
}

}  // namespace nereus
