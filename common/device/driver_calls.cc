#include "common/device/driver_calls.h"

#include <cuda_runtime_api.h>

#include "common/base/status.h"
#include "common/device/cuda_status.h"

namespace nereus {
namespace {

// Looks up the driver's function `name`. Errors: those of Driver().
template <typename Function>
absl::Status Find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
  NEREUS_TRY(CudaStatus(
      cudaGetDriverEntryPointByVersion(name, &found, /*cudaVersion=*/12000,
                                       cudaEnableDefault, &result),
      "the GPU's driver", "cudaGetDriverEntryPointByVersion"));
  function = reinterpret_cast<Function>(found);
  if (found != nullptr) return absl::OkStatus();
  return UnavailableError("the GPU's driver has no ", name,
                          ": update the driver");
}

absl::StatusOr<DriverCalls> FindDriverCalls() {
  DriverCalls calls;
  NEREUS_TRY(Find("cuInit", calls.init));
  NEREUS_TRY(Find("cuDeviceGet", calls.get_device));
  NEREUS_TRY(Find("cuDevicePrimaryCtxRetain", calls.retain));
  NEREUS_TRY(Find("cuCtxGetCurrent", calls.get_current));
  NEREUS_TRY(Find("cuCtxSetCurrent", calls.set_current));
  NEREUS_TRY(
      Find("cuThreadExchangeStreamCaptureMode", calls.exchange_capture_mode));
  NEREUS_TRY(Find("cuEventQuery", calls.query_event));
  NEREUS_TRY(DriverStatus(calls.init(0), "the GPU's driver", "cuInit"));
  return calls;
}

}  // namespace

absl::Status DriverStatus(CUresult result, absl::string_view what,
                          absl::string_view call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return UnavailableError(what, ": ", call, ": error ",
                          static_cast<int>(result));
}

const absl::StatusOr<DriverCalls>& Driver() {
  static const auto& calls =
      *new absl::StatusOr<DriverCalls>(FindDriverCalls());
  return calls;
}

}  // namespace nereus
