#include "worker/gpu/device_look.h"

#include <utility>

#include "common/base/status.h"
#include "common/compute/sums_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {

absl::StatusOr<std::unique_ptr<DeviceLook>> DeviceLook::Create(
    Stager* stager, PinnedPool& pool) {
  constexpr absl::string_view kWhat = "search for NaNs";
  DeviceMemory first = NEREUS_TRY(
      DeviceMemory::Allocate(stager->device(), kWhat, sizeof(int64_t)));
  Buffer found =
      NEREUS_TRY(pool.Take(kWhat, kPinnedBytes, absl::ZeroDuration()));
  return std::unique_ptr<DeviceLook>(
      new DeviceLook(stager, std::move(first), std::move(found)));
}

absl::Status DeviceLook::Await(absl::string_view what) {
  const Stager::Point done =
      NEREUS_TRY(stager_->Mark(what, stager_->side_stream()));
  return stager_->Await(what, done);
}

absl::Status DeviceLook::Find(absl::string_view what, const float* values,
                              int64_t count, Found& found) {
  const cudaStream_t stream = stager_->side_stream();
  auto* const first = static_cast<int64_t*>(first_.data());
  constexpr int64_t kIndexBytes = sizeof(found.index);
  NEREUS_TRY(
      CudaStatus(cudaMemsetAsync(first, kNoneFoundByte, kIndexBytes, stream),
                 what, "cudaMemsetAsync"));
  NEREUS_TRY(CudaStatus(FindTooLargeCuda(values, count, first, stream), what,
                        "FindTooLargeCuda"));
  NEREUS_TRY(CopyAsync(what, &found.index, first, kIndexBytes, stream));
  NEREUS_TRY(Await(what));
  // If a value was found, a second copy brings it to the host, for messages.
  if (found.index >= count) return absl::OkStatus();
  NEREUS_TRY(CopyAsync(what, &found.value, values + found.index,
                       sizeof(found.value), stream));
  return Await(what);
}

absl::StatusOr<BadValue> DeviceLook::FindTooLarge(absl::string_view what,
                                                  const float* values,
                                                  int64_t count) {
  const DeviceScope scope(stager_->device(), what);
  NEREUS_TRY(scope.status());
  MutexLock lock(&mu_);
  auto& found = *reinterpret_cast<Found*>(memory_.data());
  const absl::Status status = Find(what, values, count, found);
  if (!status.ok()) {
    // Waits, because queued work could write to `found` during the next search.
    (void)cudaStreamSynchronize(stager_->side_stream());
    return status;
  }
  return found.index < count ? BadValue{found.index, found.value} : BadValue();
}

}  // namespace nereus
