#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// Search of FindTooLarge (common/compute/vectors.h) on a GPU. It finds the
// same value, but has another result if there is none.
//
// Pointers are of device memory, aligned to 4 bytes. Work is queued on
// `stream`; the call does not wait. Errors: those of the launch.

// kNoneFound is the result of a search that finds nothing. All its bytes are
// kNoneFoundByte, so cudaMemsetAsync can write it.
inline constexpr uint8_t kNoneFoundByte = 0x7f;
inline constexpr int64_t kNoneFound = 0x7f7f7f7f7f7f7f7f;

// Sets *first = min(*first, the index of the first of `count` values that is
// NaN or has a magnitude of kTooLarge or more). If there is none, *first does
// not change. `first`: device memory, aligned to 8 bytes. The caller sets
// *first to kNoneFound before the first call; several calls may use the same
// `first`.
cudaError_t FindTooLargeCuda(const float* values, int64_t count, int64_t* first,
                             cudaStream_t stream);

}  // namespace nereus
