#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// Kernel of common/compute/vectors.h for a GPU. It finds the same values.
//
// Pointers are of device memory, aligned to 4 bytes. Work is queued on
// `stream`; the call does not wait. Errors: those of the launch.

// Sets *first = min(*first, the index of the first of `count` values that is
// NaN or infinite). The caller sets it to kAllFinite before; several calls may
// share it. int64, aligned to 8 bytes.
inline constexpr uint8_t kAllFiniteByte = 0x7f;  // Each byte of kAllFinite.
inline constexpr int64_t kAllFinite = 0x7f7f7f7f7f7f7f7f;
cudaError_t FindNotFiniteCuda(const float* values, int64_t count,
                              int64_t* first, cudaStream_t stream);

}  // namespace nereus
