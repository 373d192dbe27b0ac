#include "worker/gpu/gpu_timeline.h"

#include <vector>

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
  MutexLock lock(&mu_);
  moments_.Clear();
  if (anchor_ != nullptr) (void)cudaEventDestroy(anchor_);
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
  const auto anchor = GpuMoments::Record(stream);
  status_ = anchor.status();
  if (anchor.ok()) {
    anchor_ = *anchor;
    status_ = CudaStatus(cudaEventSynchronize(anchor_), kWhat,
                         "cudaEventSynchronize");
    anchored_at_ = SteadyNow();
  }
  (void)cudaStreamDestroy(stream);
}

void GpuTimeline::Keep(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
                       cudaStream_t stream) {
  MutexLock lock(&mu_);
  if (moments_.size() >= kMomentsMax || !status_.ok()) return;
  const DeviceScope scope(device_, kWhat);
  if (recorder_ != nullptr && recorder_->Covers(step)) SetAnchor();
  if (!status_.ok()) return;
  status_ = moments_.Note(kind, layer, step, begins, stream);
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
  return moments_.Spans();
}

void GpuTimeline::AddSpans() {
  const DeviceScope scope(device_, kWhat);
  if (!scope.status().ok()) return;
  MutexLock lock(&mu_);
  if (anchor_ == nullptr || !status_.ok()) return;
  const auto found = moments_.SpansSince(anchor_, /*waits=*/false);
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
  moments_.Clear();
}

}  // namespace nereus
