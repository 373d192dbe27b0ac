#include "common/device/device_scope.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"

namespace nereus {
namespace {

// Functions of the driver's library. They are looked up at run time, since
// programs do not link that library: it is not on every machine.
struct DriverCalls {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*get_device)(CUdevice*, int) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
};

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

absl::Status DriverStatus(CUresult result, absl::string_view what,
                          absl::string_view call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return UnavailableError(what, ": ", call, ": error ",
                          static_cast<int>(result));
}

absl::StatusOr<DriverCalls> FindDriverCalls() {
  DriverCalls calls;
  NEREUS_TRY(Find("cuInit", calls.init));
  NEREUS_TRY(Find("cuDeviceGet", calls.get_device));
  NEREUS_TRY(Find("cuDevicePrimaryCtxRetain", calls.retain));
  NEREUS_TRY(Find("cuCtxGetCurrent", calls.get_current));
  NEREUS_TRY(Find("cuCtxSetCurrent", calls.set_current));
  NEREUS_TRY(DriverStatus(calls.init(0), "the GPU's driver", "cuInit"));
  return calls;
}

// Returns the driver's functions, which are looked up once per process.
const absl::StatusOr<DriverCalls>& Driver() {
  static const auto& calls =
      *new absl::StatusOr<DriverCalls>(FindDriverCalls());
  return calls;
}

// Returns the primary context of the device, which the whole process shares,
// the CUDA runtime too. It is never released.
absl::StatusOr<CUcontext> PrimaryContext(int device, absl::string_view what) {
  static Mutex& mu = *new Mutex();
  static auto& contexts = *new std::map<int, CUcontext>();
  MutexLock lock(&mu);
  CUcontext& context = contexts[device];
  if (context == nullptr) {
    CUdevice number = 0;
    NEREUS_TRY(DriverStatus(Driver()->get_device(&number, device), what,
                            "cuDeviceGet"));
    NEREUS_TRY(DriverStatus(Driver()->retain(&context, number), what,
                            "cuDevicePrimaryCtxRetain"));
  }
  return context;
}

}  // namespace

absl::Status CheckDevice(int device) {
  const std::string what = absl::StrCat("GPU ", device);
  int count = 0;
  NEREUS_TRY(
      CudaStatus(cudaGetDeviceCount(&count), what, "cudaGetDeviceCount"));
  if (device >= 0 && device < count) return absl::OkStatus();
  return UnavailableError(what, ": this machine has ", count,
                          " GPUs, numbered from 0");
}

DeviceScope::DeviceScope(int device, absl::string_view what)
    : status_(Enter(device, what)) {}

absl::Status DeviceScope::Enter(int device, absl::string_view what) {
  NEREUS_TRY(Driver().status());
  const CUcontext context = NEREUS_TRY(PrimaryContext(device, what));
  NEREUS_TRY(
      DriverStatus(Driver()->get_current(&before_), what, "cuCtxGetCurrent"));
  // The common case: nothing to switch.
  if (before_ == context) return absl::OkStatus();
  switched_ = true;
  return DriverStatus(Driver()->set_current(context), what, "cuCtxSetCurrent");
}

DeviceScope::~DeviceScope() {
  if (switched_) (void)Driver()->set_current(before_);
}

}  // namespace nereus
