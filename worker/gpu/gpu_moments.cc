#include "worker/gpu/gpu_moments.h"

#include <map>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "common/device/cuda_status.h"

namespace nereus {
namespace {

constexpr char kWhat[] = "timeline";

}  // namespace

// With cudaEventDefault, an event records the time, unlike those of Stager.
absl::StatusOr<cudaEvent_t> GpuMoments::Record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  NEREUS_TRY(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDefault),
                        kWhat, "cudaEventCreateWithFlags"));
  const absl::Status recorded =
      CudaStatus(cudaEventRecord(event, stream), kWhat, "cudaEventRecord");
  if (recorded.ok()) return event;
  (void)cudaEventDestroy(event);
  return recorded;
}

absl::Status GpuMoments::Note(GpuSpan::Kind kind, int layer, int64_t step,
                              bool begins, cudaStream_t stream) {
  const cudaEvent_t event = NEREUS_TRY(Record(stream));
  moments_.push_back({kind, layer, step, begins, event});
  return absl::OkStatus();
}

void GpuMoments::Clear() {
  for (const Moment& moment : moments_) (void)cudaEventDestroy(moment.event);
  moments_.clear();
}

bool GpuMoments::AreReached() const {
  return absl::c_none_of(moments_, [](const Moment& moment) {
    return cudaEventQuery(moment.event) == cudaErrorNotReady;
  });
}

absl::StatusOr<std::vector<GpuSpan>> GpuMoments::Spans() const {
  if (moments_.empty()) return std::vector<GpuSpan>();
  return SpansSince(moments_.front().event, /*waits=*/true);
}

absl::StatusOr<std::vector<GpuSpan>> GpuMoments::SpansSince(cudaEvent_t since,
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
