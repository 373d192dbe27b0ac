#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// The kernels of common/compute/vectors.h on a GPU, which gives the same bits,
// but for what is in a NaN.
//
// Pointers are of device memory, aligned to 4 bytes. Work is queued on
// `stream`; nothing waits. Errors: what the launch came to.

// *first = min(*first, the index of the first of `count` values that is NaN or
// infinite). So the caller sets it to kAllFinite before, and several calls may
// share it. int64, aligned to 8 bytes.
inline constexpr int64_t kAllFinite = INT64_MAX;
cudaError_t FindNotFiniteCuda(const float* values, int64_t count,
                              int64_t* first, cudaStream_t stream);

}  // namespace nereus
