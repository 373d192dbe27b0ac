#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nereus {

// OK, or what CUDA says of `call`, and on whose account it was made: "layer
// conv1, gradient: cudaMemcpyAsync of 4096 bytes: invalid argument
// (cudaErrorInvalidValue)". `bytes` below 0: none are named.
//
// kResourceExhausted: out of memory; kUnavailable: no driver, or no device;
// kInvalidArgument: an argument is wrong; kInternal: all else. Errors of what
// is queued come with any later call: then the text may name the wrong one.
absl::Status CudaStatus(cudaError_t error, absl::string_view what,
                        absl::string_view call, int64_t bytes = -1);

}  // namespace nereus
