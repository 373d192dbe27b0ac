#pragma once

#include <cublas_v2.h>

#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/device/device_scope.h"

namespace nereus {

// Returns OK, or the error of cuBLAS in `call`. `what`: subject of the message,
// for example "layer fc1, product of factors". kResourceExhausted: out of
// device memory; kInternal: all other errors.
inline absl::Status CublasStatus(cublasStatus_t status, absl::string_view what,
                                 absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const auto code = status == CUBLAS_STATUS_ALLOC_FAILED
                        ? absl::StatusCode::kResourceExhausted
                        : absl::StatusCode::kInternal;
  return absl::Status(
      code, absl::StrCat(what, ": ", call, ": ", cublasGetStatusString(status),
                         " (", cublasGetStatusName(status), ")"));
}

// Handle of cuBLAS on one device. Used by one thread at a time. Movable; an
// empty handle has no device.
class CublasHandle {
 public:
  // Errors: those of CublasStatus and DeviceScope.
  static absl::StatusOr<CublasHandle> Create(int device,
                                             absl::string_view what) {
    // cuBLAS binds a handle to the current device.
    const DeviceScope scope(device, what);
    NEREUS_TRY(scope.status());
    CublasHandle handle;
    handle.device_ = device;
    NEREUS_TRY(
        CublasStatus(cublasCreate(&handle.handle_), what, "cublasCreate"));
    return handle;
  }

  // Empty handle, for a member that Create fills later.
  CublasHandle() = default;
  ~CublasHandle() {
    // A handle that was moved from, or never created.
    if (handle_ == nullptr) return;
    const DeviceScope scope(device_, "cuBLAS");
    (void)cublasDestroy(handle_);
  }
  CublasHandle(CublasHandle&& other) noexcept { *this = std::move(other); }
  CublasHandle& operator=(CublasHandle&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }

  // Handle for calls of cuBLAS. Valid as long as this object.
  cublasHandle_t get() const { return handle_; }

 private:
  // Device of the handle. Means nothing in an empty handle.
  int device_ = 0;
  // Owned. Null: the handle is empty.
  cublasHandle_t handle_ = nullptr;
};

}  // namespace nereus
