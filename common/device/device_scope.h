#pragma once

#include <cuda.h>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Returns OK if this machine has GPU `device`. Errors: kUnavailable, no such
// GPU or no driver; others of CudaStatus.
absl::Status CheckDevice(int device);

// Makes `device` the calling thread's device while the scope lives: the thread
// makes streams and events on this device, starts kernels on it and pins memory
// for it. Afterwards the thread has its former context again; a thread that had
// none has none again. cudaSetDevice could not restore that: it makes a
// context, which takes memory of the GPU.
//
// In a scope, the thread may allocate memory and query events although another
// thread captures a CUDA graph. Outside of a scope, such a call would fail and
// spoil the graph if the graph is captured in CUDA's global mode, as
// torch.cuda.graph does.
//
//   const DeviceScope scope(device, "layer conv1, gradient");
//   NEREUS_TRY(scope.status());
class DeviceScope {
 public:
  // `what`: subject of messages.
  DeviceScope(int device, absl::string_view what);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  // Error of the switch. After an error, CUDA calls may use the wrong device.
  const absl::Status& status() const { return status_; }

 private:
  // Switches the thread to the device, and to the relaxed capture mode.
  absl::Status Enter(int device, absl::string_view what);

  bool is_switched_ = false;    // True if the destructor must switch back.
  CUcontext before_ = nullptr;  // Former context, or null.
  // Capture mode to exchange: first the relaxed mode, then the thread's former
  // mode.
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  absl::Status status_;  // See status().
};

}  // namespace nereus
