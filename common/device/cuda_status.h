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
// kResourceExhausted: out of memory; kUnavailable: no usable driver or device;
// kInvalidArgument: a wrong argument; kInternal: all other errors. A later call
// may return an error of queued work; then the message names the wrong call.
// Clears the thread's last CUDA error.
absl::Status CudaStatus(cudaError_t error, absl::string_view what,
                        absl::string_view call, int64_t bytes = -1);

// Queues a copy of `bytes` on `stream`. Source and destination may each be
// device memory or host memory. With host memory that is not pinned, the call
// may wait for the copy.
absl::Status CopyAsync(absl::string_view what, void* to, const void* from,
                       int64_t bytes, cudaStream_t stream);

}  // namespace nereus
