#include "common/compute/launch_cuda.h"
#include "worker/replay/spin_cuda.h"

#if !defined(__CUDACC__)
#include <chrono>
#include <thread>
#endif

namespace nereus {

#if defined(__CUDACC__)

namespace {

// Returns the GPU's clock, in nanoseconds.
__device__ int64_t GpuNow() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(int64_t nanoseconds) {
  const int64_t end = GpuNow() + nanoseconds;
  while (GpuNow() < end) {
  }
}

}  // namespace

cudaError_t SpinCuda(int64_t nanoseconds, cudaStream_t stream) {
  return Launch(SpinKernel, /*blocks=*/1, /*threads=*/1, stream, nanoseconds);
}

#else

// The emulation runs one kernel at a time. A kernel that takes time would hold
// up the kernels of all other streams, so the stream itself sleeps.
cudaError_t SpinCuda(int64_t nanoseconds, cudaStream_t stream) {
  return cuda_emulation::Enqueue(stream, [nanoseconds] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
  });
}

#endif

}  // namespace nereus
