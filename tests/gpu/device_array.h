#pragma once

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/types/span.h"

namespace nereus {

// Ends the program with a message if `error` is not cudaSuccess.
inline void CheckCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}
#define NEREUS_CUDA(call) ::nereus::CheckCuda(call, #call)

// Returns the reason why there is no GPU to run on; null if there is one.
inline const char* WhyNoGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count == 0 ? "no device" : nullptr;
  // Ends the program if the machine has a driver that fails. That is a defect
  // of the machine, and no reason to skip tests.
  const bool has_driver = access("/dev/nvidiactl", F_OK) == 0;
  if (has_driver && error != cudaErrorNoDevice) {
    CheckCuda(error, "cudaGetDeviceCount");
  }
  return cudaGetErrorString(error);
}

// Array in device memory, with a guard on each side: 256 bytes that no kernel
// may write. If NEREUS_GPU_TEST_EXACT is set, there are no guards, because
// tools that check each access find such a write themselves.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : count_(values.size()),
        guard_(std::getenv("NEREUS_GPU_TEST_EXACT") != nullptr ? 0 : 256) {
    const std::vector<unsigned char> guard(guard_, 0xcd);
    NEREUS_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes()));
    Copy(memory_, guard.data(), guard_);
    Copy(memory_ + guard_, values.data(), count_ * sizeof(T));
    Copy(memory_ + guard_ + count_ * sizeof(T), guard.data(), guard_);
    // Waits, because other streams do not wait for copies from pageable memory.
    NEREUS_CUDA(cudaStreamSynchronize(nullptr));
  }
  ~DeviceArray() { NEREUS_CUDA(cudaFree(memory_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(memory_ + guard_); }
  absl::Span<T> span() const { return {data(), count_}; }

  // Waits for the work of the default stream, then returns the values.
  // REQUIRES: other streams have done their work on the array. Ends the program
  // if a guard has changed.
  std::vector<T> Read() const {
    NEREUS_CUDA(cudaStreamSynchronize(nullptr));
    std::vector<unsigned char> all(bytes());
    if (!all.empty()) {
      NEREUS_CUDA(
          cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    }
    for (size_t i = 0; i < guard_; ++i) {
      if (all[i] == 0xcd && all[all.size() - 1 - i] == 0xcd) continue;
      std::fprintf(stderr, "written beyond an array of %zu\n", count_);
      std::exit(1);
    }
    std::vector<T> values(count_);
    const auto* const begin = reinterpret_cast<const T*>(all.data() + guard_);
    std::copy(begin, begin + count_, values.begin());
    return values;
  }

 private:
  size_t bytes() const { return count_ * sizeof(T) + 2 * guard_; }
  static void Copy(unsigned char* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    NEREUS_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  }

  const size_t count_;
  const size_t guard_;  // Number of bytes of one guard.
  unsigned char* memory_ = nullptr;
};

}  // namespace nereus
