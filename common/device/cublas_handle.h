#pragma once

#include <cublas_v2.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/device/device_scope.h"

namespace nereus {

// OK, or what cuBLAS says of `call`, and on whose account it was made.
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

// cuBLAS on one device. One thread uses it at a time.
class CublasHandle {
 public:
  // Errors: kResourceExhausted; what CUDA or cuBLAS says.
  static absl::StatusOr<CublasHandle> Create(int device,
                                             absl::string_view what) {
    const DeviceScope scope(device, what);
    NEREUS_RETURN_IF_ERROR(scope.status());
    CublasHandle handle;
    handle.device_ = device;
    NEREUS_RETURN_IF_ERROR(
        CublasStatus(cublasCreate(&handle.handle_), what, "cublasCreate"));
    return handle;
  }

  CublasHandle() = default;
  ~CublasHandle() {
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

  cublasHandle_t get() const { return handle_; }

 private:
  int device_ = 0;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace nereus
