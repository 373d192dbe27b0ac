#pragma once

#include <cublas_v2.h>

#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/device/device_memory.h"
#include "common/device/device_scope.h"

namespace nereus {

// Returns OK, or an error for `status`, the result of a function of cuBLAS.
// `call`: name of the function. `what`: subject of the message, for example
// "layer fc1, product of factors". Errors: kResourceExhausted, out of memory;
// kInternal, all other errors.
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

// Handle of cuBLAS on one device, with a workspace: device memory that products
// may use. Only one thread may use a handle at a time, on one stream at a time.
// Movable; an empty handle has no device.
//
// All handles have workspaces of one size, because the bits of a product depend
// on that size: cuBLAS chooses its kernels by it. The size of cuBLAS's own
// default workspace depends on the model of the GPU and on the environment
// variable CUBLAS_WORKSPACE_CONFIG. With the default, replicas would differ if
// only some workers had set the variable.
class CublasHandle {
 public:
  // Bytes of the workspace: the size that NVIDIA recommends for its newest
  // GPUs.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  // Makes a handle. `what`: subject of messages. Errors: those of CublasStatus,
  // DeviceScope and DeviceMemory.
  static absl::StatusOr<CublasHandle> Create(int device,
                                             absl::string_view what) {
    // cuBLAS binds a handle to the thread's device, so the thread enters
    // `device` first.
    const DeviceScope scope(device, what);
    NEREUS_TRY(scope.status());
    CublasHandle handle;
    handle.device_ = device;
    NEREUS_TRY(
        CublasStatus(cublasCreate(&handle.handle_), what, "cublasCreate"));
    handle.workspace_ = NEREUS_TRY(
        DeviceMemory::Allocate(device, "workspace of cuBLAS", kWorkspaceBytes));
    return handle;
  }

  // Makes later calls with this handle queue their work on `stream`. Returns
  // the error of cuBLAS.
  cublasStatus_t SetStream(cudaStream_t stream) const {
    const cublasStatus_t status = cublasSetStream(handle_, stream);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    // Sets the workspace again: the call above has replaced it by cuBLAS's
    // default workspace.
    return cublasSetWorkspace(handle_, workspace_.data(), kWorkspaceBytes);
  }

  // Empty handle, for a member that Create fills later.
  CublasHandle() = default;
  ~CublasHandle() {
    // Nothing to destroy: the handle was moved from, or never created.
    if (handle_ == nullptr) return;
    const DeviceScope scope(device_, "cuBLAS");
    (void)cublasDestroy(handle_);
  }
  CublasHandle(CublasHandle&& other) noexcept { *this = std::move(other); }
  CublasHandle& operator=(CublasHandle&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    std::swap(workspace_, other.workspace_);
    return *this;
  }

  // Returns the handle for calls of cuBLAS; null if this handle is empty. Valid
  // until this object is destroyed or moved from.
  cublasHandle_t get() const { return handle_; }

 private:
  // Device of the handle. Means nothing in an empty handle.
  int device_ = 0;
  // Owned. Null: the handle is empty.
  cublasHandle_t handle_ = nullptr;
  DeviceMemory workspace_;  // Device memory that products may use.
};

}  // namespace nereus
