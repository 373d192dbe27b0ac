#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

struct CUctx_st;

namespace nereus {

// OK, or kUnavailable: there is no such GPU, or no driver.
absl::Status CheckDevice(int device);

// While it exists, the calling thread's device is `device`: streams and events
// are made on it, kernels run on it, and memory is pinned by its context.
// Before and after it is the thread's own affair: one that has no context gets
// none, of the first GPU, say, where it would take memory.
class DeviceScope {
 public:
  // `what`: on whose account, for messages.
  DeviceScope(int device, absl::string_view what);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  absl::Status Enter(int device, absl::string_view what);

  bool switched_ = false;
  CUctx_st* before_ = nullptr;
  absl::Status status_;
};

}  // namespace nereus
