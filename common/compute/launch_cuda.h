#pragma once

// For *_cuda.cu alone: how kernels are started. They are compiled by nvcc; or,
// for tests on machines without a GPU, by the host's compiler with
// tests/gpu/cuda_emulation.h included before everything else.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#if !defined(__CUDACC__) && !defined(NEREUS_CUDA_EMULATION)
#error "a file for nvcc"
#endif

namespace nereus {

// Of one block of a kernel that treats values one by one; a power of two.
inline constexpr int kThreads = 256;

// So many values a thread treats at a time, all loaded before any is stored:
// with fewer bytes under way the memory is not kept busy.
inline constexpr int kValuesPerThread = 16;

// Queues `kernel` on `stream`: `blocks` of `threads` each. Returns what the
// launch itself came to; kInvalidConfiguration, more blocks than a grid has.
template <typename... Parameters>
cudaError_t Launch(void (*kernel)(Parameters...), int64_t blocks, int threads,
                   cudaStream_t stream,
                   std::type_identity_t<Parameters>... arguments) {
  if (blocks == 0) return cudaSuccess;
  if (blocks < 0 || blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
#if defined(__CUDACC__)
  // Not the <<<>>> way: this returns its own error, and no earlier one.
  void* pointers[] = {&arguments...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                          dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), pointers,
                          /*sharedMem=*/0, stream);
#else
  return cuda_emulation::Launch(kernel, blocks, threads, stream, arguments...);
#endif
}

inline int64_t BlocksFor(int64_t values, int64_t per_block) {
  return (values + per_block - 1) / per_block;
}

// Of a kernel that calls ForEachValue.
inline int64_t BlocksFor(int64_t values) {
  return BlocksFor(values, int64_t{kThreads} * kValuesPerThread);
}

// Calls load(i) for this thread's share of [0, count), and then store(i, what
// load returned) for each of them; neighbouring threads have neighbouring i.
// REQUIRES: the kernel runs with BlocksFor(count) blocks of kThreads.
template <typename Load, typename Store>
__device__ void ForEachValue(int64_t count, Load load, Store store) {
  const int64_t first =
      int64_t{blockIdx.x} * (kThreads * kValuesPerThread) + threadIdx.x;
  decltype(load(int64_t{0})) loaded[kValuesPerThread];
#pragma unroll
  for (int k = 0; k < kValuesPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < count) loaded[k] = load(i);
  }
#pragma unroll
  for (int k = 0; k < kValuesPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < count) store(i, loaded[k]);
  }
}

}  // namespace nereus
