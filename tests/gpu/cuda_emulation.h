#pragma once

// Runs kernels on the CPU, for tests on machines without a GPU. The host's
// compiler compiles *_cuda.cu with this file included before everything else
// (-include); emulated_cuda.cc replaces the CUDA runtime. Such a test shows
// that a kernel computes the right values and writes to the right places. It
// does not show the kernel's speed, nor races within a CUDA block: the threads
// of a block run one after the other, from barrier to barrier. To compile this
// file, the headers of the CUDA Toolkit are needed.

#define NEREUS_CUDA_EMULATION 1

// Replaces the toolkit's own definitions.
#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#undef __constant__
#define __host__
#define __device__
#define __global__
#define __shared__ static  // Safe, because one block runs at a time.
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

// Waits at a barrier until each other thread of the running block has come to
// the barrier or has ended. Called by a thread of that block.
void AwaitBlock();

// Runs `body` as each of `threads` threads, block after block.
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

// Makes the functions below atomic, also for threads outside of kernels.
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
