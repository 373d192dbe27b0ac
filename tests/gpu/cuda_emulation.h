#pragma once

// Runs kernels on the CPU, for tests on machines without a GPU: the host's
// compiler compiles *_cuda.cu with this file included before everything else
// (-include), and emulated_cuda.cc stands for the CUDA runtime. It shows that a
// kernel computes what it should and where it writes; not how fast it is, and
// not races within a block, whose threads run one after the other here, from
// barrier to barrier. The toolkit's headers are needed.

#define NEREUS_CUDA_EMULATION 1

// In the place of the toolkit's own, whichever comes first.
#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#undef __constant__
#define __host__
#define __device__
#define __global__
#define __shared__ static  // One block runs at a time.
#define __constant__

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <mutex>

namespace cuda_emulation {

struct Index {
  unsigned x = 0;
};
inline thread_local Index block_index;
inline thread_local Index thread_index;

// Of the threads of the block that runs: until all that have not ended are
// there.
void AwaitBlock();

// Runs `body` as each of `threads` threads, of block after block.
void RunBlocks(int64_t blocks, int threads, const std::function<void()>& body);

// Queues `work` on a stream of emulated_cuda.cc.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);

template <typename... Parameters>
cudaError_t Launch(void (*kernel)(Parameters...), int64_t blocks, int threads,
                   cudaStream_t stream, Parameters... arguments) {
  if (blocks < 0 || blocks >= int64_t{1} << 31 || threads > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  return Enqueue(stream, [=] {
    RunBlocks(blocks, threads, [=] { kernel(arguments...); });
  });
}

}  // namespace cuda_emulation

#define blockIdx cuda_emulation::block_index
#define threadIdx cuda_emulation::thread_index

using std::max;
using std::min;

inline void __syncthreads() { cuda_emulation::AwaitBlock(); }
inline uint32_t __float_as_uint(float value) {
  return std::bit_cast<uint32_t>(value);
}
inline float __uint_as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// One thread runs at a time, of one kernel; several streams may run kernels.
namespace cuda_emulation {
inline std::mutex atomics;
}
template <typename T>
T atomicMin(T* address, T value) {
  const std::lock_guard<std::mutex> lock(cuda_emulation::atomics);
  const T before = *address;
  *address = std::min(before, value);
  return before;
}
template <typename T>
T atomicMax(T* address, T value) {
  const std::lock_guard<std::mutex> lock(cuda_emulation::atomics);
  const T before = *address;
  *address = std::max(before, value);
  return before;
}
