#include "worker/narrow_gradient.h"

#include "common/base/status_macros.h"
#include "common/compute/frame_halves_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {

absl::StatusOr<std::shared_ptr<NarrowGradient>> NarrowGradient::CopyOut(
    Stager* stager, absl::string_view what, const float* source, Buffer values,
    const Buffer& halves, const Stager::Point& after) {
  NEREUS_RETURN_IF_ERROR(stager->CheckPointer(what, source));
  const DeviceScope scope(stager->device(), what);
  NEREUS_RETURN_IF_ERROR(scope.status());
  const cudaStream_t stream = stager->out();
  NEREUS_RETURN_IF_ERROR(stager->Follow(what, stream, after));
  void* narrow = nullptr;
  NEREUS_RETURN_IF_ERROR(CudaStatus(
      cudaMallocAsync(&narrow, static_cast<size_t>(halves.bytes()), stream),
      what, "cudaMallocAsync", halves.bytes()));
  const cudaError_t rounded = ToBfloat16Cuda(
      source, values.float_count(), static_cast<uint16_t*>(narrow), stream);
  auto outgoing = stager->CopyOut(what, narrow, halves, {}, stream);
  absl::Status status = CudaStatus(rounded, what, "ToBfloat16Cuda");
  status.Update(outgoing.status());
  status.Update(
      CudaStatus(cudaFreeAsync(narrow, stream), what, "cudaFreeAsync"));
  NEREUS_RETURN_IF_ERROR(status);
  auto gradient = std::shared_ptr<NarrowGradient>(
      new NarrowGradient(stager, what, source, std::move(values)));
  gradient->halves_ = Buffer::Borrow(
      halves.data(), halves.bytes(), [halves] {}, *std::move(outgoing));
  return gradient;
}

bool NarrowGradient::IsThere(int64_t bytes) {
  MutexLock lock(&mu_);
  return bytes <= 0 || (wide_ != nullptr && wide_->IsThere(bytes));
}

absl::Status NarrowGradient::Await(int64_t bytes) {
  MutexLock lock(&mu_);
  if (wide_ == nullptr) {
    NEREUS_ASSIGN_OR_RETURN(
        wide_, stager_->CopyOut(what_, source_, values_, {}, stager_->aside()));
  }
  return wide_->Await(bytes);
}

}  // namespace nereus
