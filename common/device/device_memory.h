#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {

// Memory of a GPU. The destructor frees it. REQUIRES: no queued work uses the
// memory when it is freed. Movable; a default-constructed object is empty.
class DeviceMemory {
 public:
  // Allocates `bytes` bytes on `device`. `what`: subject of messages. Errors:
  // kResourceExhausted, with the number of bytes; others of CudaStatus and
  // DeviceScope.
  static absl::StatusOr<DeviceMemory> Allocate(int device,
                                               absl::string_view what,
                                               int64_t bytes) {
    const DeviceScope scope(device, what);
    NEREUS_TRY(scope.status());
    DeviceMemory memory;
    memory.device_ = device;
    memory.bytes_ = bytes;
    NEREUS_TRY(CudaStatus(cudaMalloc(&memory.data_, static_cast<size_t>(bytes)),
                          what, "cudaMalloc", bytes));
    return memory;
  }

  // Empty memory: data() is null.
  DeviceMemory() = default;
  ~DeviceMemory() {
    // Nothing to free: the memory was moved away, or never allocated.
    if (data_ == nullptr) return;
    const DeviceScope scope(device_, "memory");
    (void)cudaFree(data_);
  }
  // Moves the ownership. The assignment swaps the two memories: the destructor
  // of `other` then frees the former memory of this object.
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }

  // Address of the first byte on the device, null if empty; number of bytes.
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  // Device of the memory. Means nothing if data_ is null.
  int device_ = 0;
  // Number of bytes at data_.
  int64_t bytes_ = 0;
  // Owned. Null: there is no memory.
  void* data_ = nullptr;
};

}  // namespace nereus
