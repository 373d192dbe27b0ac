#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Returns OK, or the error of CUDA in `call`, with `what` in front: "layer
// conv1, gradient: cudaMemcpyAsync of 4096 bytes: invalid argument
// (cudaErrorInvalidValue)". With negative `bytes`, the message has no bytes.
//
// kResourceExhausted: out of memory; kUnavailable: no driver or no device;
// kInvalidArgument: a wrong argument; kInternal: all other errors. An error of
// queued work is returned by any later call: then the message may name the
// wrong call.
absl::Status CudaStatus(cudaError_t error, absl::string_view what,
                        absl::string_view call, int64_t bytes = -1);

// Queues a copy of `bytes` on `stream`, between any two of pinned host memory
// and device memory.
absl::Status CopyAsync(absl::string_view what, void* to, const void* from,
                       int64_t bytes, cudaStream_t stream);

}  // namespace nereus
