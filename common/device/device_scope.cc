#include "common/device/device_scope.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <string>

#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/driver_calls.h"

namespace nereus {
namespace {

// Limit of the number of GPUs of a machine.
constexpr int kDevicesMax = 128;

// Returns the device's primary context. All code of the process shares this
// context, the CUDA runtime too. This program never releases it.
absl::StatusOr<CUcontext> PrimaryContext(int device, absl::string_view what) {
  // Contexts that are already known, by device. Atomic, so that no lock is
  // needed: this function runs for each frame that leaves a GPU.
  static std::array<std::atomic<CUcontext>, kDevicesMax> contexts;
  if (device < 0 || device >= kDevicesMax) {
    return UnavailableError(what, ": the number of a GPU must be in [0, ",
                            kDevicesMax, ")");
  }
  if (CUcontext known = contexts[device]; known != nullptr) return known;
  CUdevice number = 0;
  CUcontext context = nullptr;
  NEREUS_TRY(
      DriverStatus(Driver()->get_device(&number, device), what, "cuDeviceGet"));
  // Two threads that come here at once get the same context.
  NEREUS_TRY(DriverStatus(Driver()->retain(&context, number), what,
                          "cuDevicePrimaryCtxRetain"));
  contexts[device] = context;
  return context;
}

}  // namespace

absl::Status CheckDevice(int device) {
  const std::string what = absl::StrCat("GPU ", device);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  const absl::Status status = CudaStatus(error, what, "cudaGetDeviceCount");
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    return UnavailableError(
        status.message(), ": this needs a GPU of NVIDIA and a driver for CUDA ",
        CUDART_VERSION / 1000, "; a container must be given both");
  }
  NEREUS_TRY(status);
  if (device >= 0 && device < count) return absl::OkStatus();
  return InvalidArgumentError(what, ": this machine has ", count,
                              " GPUs, numbered from 0");
}

DeviceScope::DeviceScope(int device, absl::string_view what)
    : status_(Enter(device, what)) {}

absl::Status DeviceScope::Enter(int device, absl::string_view what) {
  NEREUS_TRY(Driver().status());
  const CUcontext context = NEREUS_TRY(PrimaryContext(device, what));
  NEREUS_TRY(
      DriverStatus(Driver()->get_current(&before_), what, "cuCtxGetCurrent"));
  if (before_ != context) {  // Often equal: a caller uses the same device.
    is_switched_ = true;
    NEREUS_TRY(
        DriverStatus(Driver()->set_current(context), what, "cuCtxSetCurrent"));
  }
  // Exchanges the mode last: while the thread has no context, this call could
  // make one.
  return DriverStatus(Driver()->exchange_capture_mode(&capture_mode_), what,
                      "cuThreadExchangeStreamCaptureMode");
}

DeviceScope::~DeviceScope() {
  if (!Driver().ok()) return;
  if (status_.ok()) (void)Driver()->exchange_capture_mode(&capture_mode_);
  if (is_switched_) (void)Driver()->set_current(before_);
}

}  // namespace nereus
