#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// FindNotFinite of common/compute/vectors.h for a GPU. The kernel finds the
// same values.
//
// Pointers are of device memory, aligned to 4 bytes. Work is queued on
// `stream`; the call does not wait. Errors: those of the launch.

// Result of a search that finds nothing (kAllFinite), and each of its bytes.
inline constexpr uint8_t kAllFiniteByte = 0x7f;
inline constexpr int64_t kAllFinite = 0x7f7f7f7f7f7f7f7f;

// Sets *first = min(*first, the index of the first of `count` values that is
// NaN or infinite). `first`: device memory, aligned to 8 bytes. The caller sets
// *first to kAllFinite before the first call; several calls may share it.
cudaError_t FindNotFiniteCuda(const float* values, int64_t count,
                              int64_t* first, cudaStream_t stream);

}  // namespace nereus
