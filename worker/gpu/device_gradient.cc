#include "worker/gpu/device_gradient.h"

#include "common/base/status.h"

namespace nereus {

bool DeviceGradient::IsThere(int64_t bytes) {
  MutexLock lock(&mu_);
  return bytes <= 0 || (copy_ != nullptr && copy_->IsThere(bytes));
}

absl::Status DeviceGradient::Await(int64_t bytes) {
  std::shared_ptr<Stager::Outgoing> copy;
  {
    MutexLock lock(&mu_);
    // So far only the halves are copied. The host client needs the float32
    // values.
    if (copy_ == nullptr && bfloat16() != nullptr) {
      copy_ = NEREUS_TRY(stager_->CopyOut(what_, values_, staged_, {},
                                          stager_->side_stream()));
    }
    // Waits below, without the lock: IsThere takes the lock and must not wait.
    copy = copy_;
  }
  if (copy != nullptr) return copy->Await(bytes);
  return InternalError(what_,
                       ": the host reads values that the GPU has not sent");
}

absl::StatusOr<BadValue> DeviceGradient::FindTooLarge() {
  if (look_ == nullptr) return Arrival::FindTooLarge();
  return look_->FindTooLarge(what_, values_, staged_.float_count());
}

}  // namespace nereus
