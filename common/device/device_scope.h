#ifndef NEREUS_COMMON_DEVICE_DEVICE_SCOPE_H_
#define NEREUS_COMMON_DEVICE_DEVICE_SCOPE_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/device/cuda_status.h"

namespace nereus {

// While it exists, the calling thread's device is `device`: streams and events
// are made on it, and memory is pinned by its context. Before and after, it is
// the thread's own affair. (To go back to a device that nobody has used yet
// costs it a context: whoever trains on another one than the first says so
// before.)
class DeviceScope {
 public:
  // `what`: on whose account, for messages.
  DeviceScope(int device, absl::string_view what) : device_(device) {
    status_ = CudaStatus(cudaGetDevice(&before_), what, "cudaGetDevice");
    if (!status_.ok()) {
      before_ = device_;
    } else if (before_ != device_) {
      status_ = CudaStatus(cudaSetDevice(device_), what, "cudaSetDevice");
    }
  }
  ~DeviceScope() {
    if (before_ != device_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  const int device_;
  int before_ = 0;
  absl::Status status_;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_DEVICE_DEVICE_SCOPE_H_
