#include "worker/gpu/narrow_gradient.h"

#include "common/base/status_macros.h"
#include "common/compute/bfloat16_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {

absl::StatusOr<std::shared_ptr<NarrowGradient>> NarrowGradient::CopyOut(
    Stager* stager, absl::string_view what, const float* source,
    uint16_t* rounded, Buffer values, const Buffer& halves) {
  NEREUS_RETURN_IF_ERROR(stager->CheckPointer(what, source));
  const DeviceScope scope(stager->device(), what);
  NEREUS_RETURN_IF_ERROR(scope.status());
  const cudaStream_t stream = stager->out();
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(ToBfloat16Cuda(source, values.float_count(), rounded, stream),
                 what, "ToBfloat16Cuda"));
  NEREUS_ASSIGN_OR_RETURN(auto outgoing,
                          stager->CopyOut(what, rounded, halves, {}, stream));
  auto gradient = std::shared_ptr<NarrowGradient>(
      new NarrowGradient(stager, what, source, std::move(values)));
  gradient->halves_ = Buffer::Borrow(
      halves.data(), halves.bytes(), [halves] {}, std::move(outgoing));
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
