#pragma once

#include <cuda.h>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Returns OK if this machine has GPU `device`. Errors: kInvalidArgument, no
// such GPU; kUnavailable, no GPU at all, or no driver that fits, as while the
// driver is being installed; others of CudaStatus.
absl::Status CheckDevice(int device);

// Makes `device` the calling thread's device while the scope lives: the thread
// makes streams and events on this device, starts kernels on it and pins memory
// for it. The destructor gives the thread its former context (CUDA's state of
// one device) back; a thread that had no context has none again. cudaSetDevice
// could not do that: it would make a context for the thread, which takes memory
// of the GPU.
//
// In a scope, the thread may allocate memory and query events even while
// another thread captures a CUDA graph. Outside of a scope, these calls would
// fail, and spoil the graph, if the other thread captures it in CUDA's global
// mode, as torch.cuda.graph does.
//
//   const DeviceScope scope(device, "layer conv1, gradient");
//   NEREUS_TRY(scope.status());
class DeviceScope {
 public:
  // Enters `device`. status() says whether that worked. `what`: subject of
  // messages.
  DeviceScope(int device, absl::string_view what);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  // Returns OK if the thread has entered the device. After an error, CUDA calls
  // in the scope may use the wrong device. Errors: kUnavailable, there is no
  // such GPU, or its driver fails; others of CudaStatus.
  const absl::Status& status() const { return status_; }

 private:
  // Switches the thread to the device, and to the relaxed capture mode.
  absl::Status Enter(int device, absl::string_view what);

  bool is_switched_ = false;    // True if the destructor must switch back.
  CUcontext before_ = nullptr;  // Former context, or null.
  // Capture mode to give to the thread next: the relaxed mode for the
  // constructor, and the thread's former mode for the destructor.
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  absl::Status status_;  // See status().
};

}  // namespace nereus
