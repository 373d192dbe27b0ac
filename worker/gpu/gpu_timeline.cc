#include "worker/gpu/gpu_timeline.h"

#include <map>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

// Number of events after which recording stops.
constexpr size_t kMomentsMax = 1 << 16;
constexpr char kWhat[] = "timeline";

}  // namespace

GpuTimeline::~GpuTimeline() {
  const DeviceScope scope(device_, kWhat);
  for (const Moment& moment : moments_) (void)cudaEventDestroy(moment.event);
}

void GpuTimeline::Note(GpuSpan::Kind kind, int layer, int64_t step, bool begins,
                       cudaStream_t stream) {
  MutexLock lock(&mu_);
  if (moments_.size() >= kMomentsMax || !status_.ok()) return;
  const DeviceScope scope(device_, kWhat);
  cudaEvent_t event = nullptr;
  // With cudaEventDefault, an event records the time, unlike those of Stager.
  status_ = CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDefault),
                       kWhat, "cudaEventCreateWithFlags");
  if (!status_.ok()) return;
  moments_.push_back({kind, layer, step, begins, event});
  status_ =
      CudaStatus(cudaEventRecord(event, stream), kWhat, "cudaEventRecord");
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
  std::vector<GpuSpan> spans;
  // Spans that have begun and not ended, at most one of each kind.
  std::map<GpuSpan::Kind, GpuSpan> open;
  for (const Moment& moment : moments_) {
    NEREUS_TRY(CudaStatus(cudaEventSynchronize(moment.event), kWhat,
                          "cudaEventSynchronize"));
    float milliseconds = 0.0f;
    NEREUS_TRY(
        CudaStatus(cudaEventElapsedTime(&milliseconds, moments_.front().event,
                                        moment.event),
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
