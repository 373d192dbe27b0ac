#pragma once

// Start of kernels. Only files *_cuda.cu include this file. nvcc compiles these
// files. For tests on machines without a GPU, the host's compiler compiles
// them, with tests/gpu/cuda_emulation.h included before everything else.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/compute/bad_result_cuda.h"

#if !defined(__CUDACC__) && !defined(NEREUS_CUDA_EMULATION)
#error "a file for nvcc"
#endif

namespace nereus {

// Number of threads in a thread block; a power of two.
inline constexpr int kThreads = 256;

// Number of values that a thread treats in ForEachValue. The thread loads all
// of them before it stores any: with fewer loads under way, the GPU's memory
// would idle.
inline constexpr int kValuesPerThread = 16;

// Queues `kernel` on `stream`, in `blocks` thread blocks of `threads` threads.
// With 0 blocks, does nothing. Returns the error of the launch; for `blocks`
// below 0 or above the limit of CUDA, cudaErrorInvalidConfiguration. An error
// within the kernel is returned by a later call on the stream.
template <typename... Parameters>
cudaError_t Launch(void (*kernel)(Parameters...), int64_t blocks, int threads,
                   cudaStream_t stream,
                   std::type_identity_t<Parameters>... arguments) {
  if (blocks == 0) return cudaSuccess;
  if (blocks < 0 || blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
#if defined(__CUDACC__)
  // After <<<>>>, the error must be asked for, and may be that of an earlier
  // call. cudaLaunchKernel returns its own error.
  void* pointers[] = {&arguments...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                          dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), pointers,
                          /*sharedMem=*/0, stream);
#else
  return cuda_emulation::Launch(kernel, blocks, threads, stream, arguments...);
#endif
}

// Returns the number of thread blocks that treat `values` values, if each
// treats `per_block`.
inline int64_t BlocksFor(int64_t values, int64_t per_block) {
  return (values + per_block - 1) / per_block;
}

// Returns the number of thread blocks of a kernel that calls ForEachValue.
inline int64_t BlocksFor(int64_t values) {
  return BlocksFor(values, int64_t{kThreads} * kValuesPerThread);
}

// Calls load(i) for each i of this thread's share of [0, count), and then
// store(i, result of load(i)) for each of these i. Neighbouring threads have
// neighbouring i, so the GPU merges their accesses to memory. REQUIRES: the
// kernel runs with BlocksFor(count) thread blocks of kThreads threads.
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

__device__ inline bool IsFiniteCuda(float value) {
  constexpr uint32_t kExponent = 0x7f800000;
  return (__float_as_uint(value) & kExponent) != kExponent;
}

// Notes the value of index `i` of this kernel. Threads that call this at once
// may write different indices, each of a value that is not finite; the rest is
// the same.
__device__ inline void Note(const NoteBadResult& note, int64_t i) {
  if (note.place == nullptr || note.place->index >= 0) return;
  note.place->step = note.step;
  note.place->of = note.of;
  // The host reads the index while kernels run.
#if defined(__CUDACC__)
  *const_cast<volatile int64_t*>(&note.place->index) = note.offset + i;
#else
  std::atomic_ref(note.place->index)
      .store(note.offset + i, std::memory_order_relaxed);
#endif
}

}  // namespace nereus
