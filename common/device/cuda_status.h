#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Returns OK, or an error for `error`, the result of a function of CUDA. `what`
// is the subject of the message, `call` the name of the function: "layer conv1,
// gradient: cudaMemcpyAsync of 4096 bytes: invalid argument
// (cudaErrorInvalidValue)". With negative `bytes`, the message has no number of
// bytes. If there is an error, clears the thread's last CUDA error.
//
// Errors: kResourceExhausted, out of memory; kUnavailable, no usable driver or
// device; kInvalidArgument, a wrong argument; kInternal, all other errors. If
// queued work fails, CUDA reports this as the result of a later, unrelated
// call; the message then names that call.
absl::Status CudaStatus(cudaError_t error, absl::string_view what,
                        absl::string_view call, int64_t bytes = -1);

// Queues a copy of `bytes` bytes on `stream`. Source and destination may each
// be device memory or host memory. If one of them is host memory that is not
// pinned, the call may block until the copy has ended. Errors: those of
// CudaStatus.
absl::Status CopyAsync(absl::string_view what, void* to, const void* from,
                       int64_t bytes, cudaStream_t stream);

}  // namespace nereus
