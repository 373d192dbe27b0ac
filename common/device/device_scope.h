#pragma once

#include <cuda.h>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Returns OK, or kUnavailable: there is no such GPU, or no driver.
absl::Status CheckDevice(int device);

// Makes `device` the calling thread's device for the time of its life: streams
// and events are made on it, kernels run on it, and its context pins memory.
// Afterwards the thread has its former context again. A thread without a
// context gets none: cudaSetDevice would give it one, which takes memory of the
// GPU.
//
// For that time the thread may also do what CUDA forbids all threads while any
// of them captures a graph, as torch.cuda.graph does: allocate memory, or query
// an event. Such a call would fail, and spoil the graph.
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

  // Error of the switch. After an error, CUDA calls would use the wrong device.
  const absl::Status& status() const { return status_; }

 private:
  // Switches the thread to the device.
  absl::Status Enter(int device, absl::string_view what);

  bool is_switched_ = false;    // True if the destructor must switch back.
  CUcontext before_ = nullptr;  // Context of the thread before.
  // Capture mode to set: the relaxed one, and from then on the thread's before.
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  absl::Status status_;  // See status().
};

}  // namespace nereus
