#include "common/device/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Maps an error to the code by which the caller decides what to do.
absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorDevicesUnavailable:
      return absl::StatusCode::kUnavailable;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidResourceHandle:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what,
                        absl::string_view call, int64_t bytes) {
  if (error == cudaSuccess) return absl::OkStatus();
  // Clears the thread's last error. Otherwise a later cudaGetLastError would
  // return this error as that of another call.
  (void)cudaGetLastError();
  return absl::Status(
      CodeOf(error),
      absl::StrCat(what, what.empty() ? "" : ": ", call,
                   bytes < 0 ? "" : absl::StrCat(" of ", bytes, " bytes"), ": ",
                   cudaGetErrorString(error), " (", cudaGetErrorName(error),
                   ")"));
}

absl::Status CopyAsync(absl::string_view what, void* to, const void* from,
                       int64_t bytes, cudaStream_t stream) {
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                    cudaMemcpyDefault, stream),
                    what, "cudaMemcpyAsync", bytes);
}

}  // namespace nereus
