#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

#include "tests/gpu/device_array.h"

namespace nereus {

// Stops a stream: work that is queued after the gate waits until Open is called
// or the gate is destroyed.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) : stream_(stream) {
    NEREUS_CUDA(cudaLaunchHostFunc(
        stream,
        [](void* is_open) {
          while (!*static_cast<std::atomic<bool>*>(is_open)) {
            std::this_thread::yield();
          }
        },
        &is_open_));
  }
  ~Gate() {
    Open();
    // The stream may still read `is_open_`.
    NEREUS_CUDA(cudaStreamSynchronize(stream_));
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void Open() { is_open_ = true; }

 private:
  const cudaStream_t stream_;
  std::atomic<bool> is_open_{false};
};

}  // namespace nereus
