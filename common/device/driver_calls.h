#pragma once

#include <cuda.h>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Functions of the GPU driver's library. They are looked up at run time, since
// programs do not link that library: it is not on every machine.
struct DriverCalls {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*get_device)(CUdevice*, int) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode*) = nullptr;
  CUresult (*query_event)(CUevent) = nullptr;
};

// Returns the driver's functions, or the error of the search for them. The
// search runs once per process. Errors: kUnavailable, there is no driver, or
// the driver does not start or lacks a function; others of CudaStatus.
const absl::StatusOr<DriverCalls>& Driver();

// Returns OK, or kUnavailable with the number of the error. `what`: subject of
// the message; `call`: name of the function.
absl::Status DriverStatus(CUresult result, absl::string_view what,
                          absl::string_view call);

}  // namespace nereus
