#pragma once

#include <cuda.h>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Functions of the library of the GPU's driver. The program looks them up when
// it runs and does not link the library, because not every machine has it.
struct DriverCalls {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*get_device)(CUdevice*, int) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode*) = nullptr;
  CUresult (*query_event)(CUevent) = nullptr;
};

// Returns the driver's functions. Only the first call of the process looks them
// up. Errors: kUnavailable, there is no driver, or the driver does not start or
// lacks a function; others of CudaStatus.
const absl::StatusOr<DriverCalls>& Driver();

// Returns OK if `result` is a success; else kUnavailable, with the number of
// the error. `what`: subject of the message; `call`: name of the driver's
// function.
absl::Status DriverStatus(CUresult result, absl::string_view what,
                          absl::string_view call);

}  // namespace nereus
