#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// Queues work on `stream` that takes `nanoseconds` and computes nothing. The
// call does not wait. On a GPU the work is a kernel of one thread, which reads
// the GPU's clock: one multiprocessor is busy, and the memory is not. In the
// emulation of CUDA, the stream sleeps. Errors: those of the launch.
cudaError_t SpinCuda(int64_t nanoseconds, cudaStream_t stream);

}  // namespace nereus
