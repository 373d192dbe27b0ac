#include "common/device/device_scope.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "common/base/status_macros.h"
#include "common/device/cuda_status.h"

namespace nereus {
namespace {

// The driver's, which programs do not link: it is not on every machine.
struct DriverCalls {
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
};

template <typename Function>
absl::Status Find(const char* name, absl::string_view what,
                  Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
  NEREUS_RETURN_IF_ERROR(CudaStatus(
      cudaGetDriverEntryPointByVersion(name, &found, /*cudaVersion=*/12000,
                                       cudaEnableDefault, &result),
      what, "cudaGetDriverEntryPointByVersion"));
  function = reinterpret_cast<Function>(found);
  return found != nullptr
             ? absl::OkStatus()
             : absl::UnavailableError("the GPU's driver is too old");
}

absl::StatusOr<DriverCalls> FindDriverCalls(absl::string_view what) {
  DriverCalls calls;
  NEREUS_RETURN_IF_ERROR(Find("cuCtxGetCurrent", what, calls.get_current));
  NEREUS_RETURN_IF_ERROR(Find("cuCtxSetCurrent", what, calls.set_current));
  return calls;
}

// The same for the whole process, once they are found.
const absl::StatusOr<DriverCalls>& Driver() {
  static const auto& calls =
      *new absl::StatusOr<DriverCalls>(FindDriverCalls("the GPU's driver"));
  return calls;
}

}  // namespace

DeviceScope::DeviceScope(int device, absl::string_view what)
    : status_(Enter(device, what)) {}

absl::Status DeviceScope::Enter(int device, absl::string_view what) {
  NEREUS_RETURN_IF_ERROR(Driver().status());
  int current = 0;
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaGetDevice(&current), what, "cudaGetDevice"));
  if (Driver()->get_current(&before_) != CUDA_SUCCESS) before_ = nullptr;
  if (before_ != nullptr && current == device) return absl::OkStatus();
  switched_ = true;
  return CudaStatus(cudaSetDevice(device), what, "cudaSetDevice");
}

DeviceScope::~DeviceScope() {
  if (switched_) (void)Driver()->set_current(before_);
}

}  // namespace nereus
