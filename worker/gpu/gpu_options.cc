#include "common/base/status.h"
#include "worker/public/gpu.h"

namespace nereus {

absl::Status GpuOptions::Validate() const {
  if (device < 0) {
    return InvalidArgumentError("device is ", device, ", must not be negative");
  }
  if (staging_bytes < 0) {
    return InvalidArgumentError("staging_bytes is ", staging_bytes,
                                ", must not be negative");
  }
  return absl::OkStatus();
}

}  // namespace nereus
