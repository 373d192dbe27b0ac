#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// Rounds float32 values to bfloat16 on a GPU, with the bits of ToBfloat16 in
// common/compute/half.h.
//
//   values  float32, {count}
//   halves  bfloat16, {count}
//
// Both are device memory, aligned to their types, and do not overlap. The work
// is queued on `stream`; the call does not wait. Returns the error of the
// launch.
cudaError_t ToBfloat16Cuda(const float* values, int64_t count, uint16_t* halves,
                           cudaStream_t stream);

}  // namespace nereus
