#pragma once

#include "absl/strings/string_view.h"
#include "common/base/status.h"

struct CUctx_st;

namespace nereus {

// Returns OK, or kUnavailable: there is no such GPU, or no driver.
absl::Status CheckDevice(int device);

// Makes `device` the calling thread's device for the time of its life: streams
// and events are made on it, kernels run on it, and its context pins memory.
// Afterwards the thread has its former context again. A thread without a
// context gets none: cudaSetDevice would give it one, which takes memory of the
// GPU.
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

  bool switched_ = false;       // True if the destructor must switch back.
  CUctx_st* before_ = nullptr;  // Context of the thread before.
  absl::Status status_;         // See status().
};

}  // namespace nereus
