#include "worker/gpu/device_gradient.h"

#include "absl/strings/str_cat.h"

namespace nereus {

bool DeviceGradient::IsThere(int64_t bytes) {
  const auto copy = this->copy();
  return bytes <= 0 || (copy != nullptr && copy->IsThere(bytes));
}

absl::Status DeviceGradient::Await(int64_t bytes) {
  const auto copy = this->copy();
  if (copy != nullptr) return copy->Await(bytes);
  return absl::InternalError(
      absl::StrCat(what_, ": is on the GPU alone, and wanted on the host"));
}

absl::StatusOr<NotFinite> DeviceGradient::FindNotFinite() {
  return look_->FindNotFinite(what_, values_, staged_.float_count());
}

}  // namespace nereus
