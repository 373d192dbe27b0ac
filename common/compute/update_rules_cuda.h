#pragma once

#include <cuda_runtime_api.h>

#include "common/compute/bad_result_cuda.h"
#include "common/compute/update_rules.h"

namespace nereus {

// Kernels of common/compute/update_rules.h for a GPU. They give the same bits,
// except that a NaN may have other bits. They read and write each value once at
// most.
//
// Pointers are of device memory, aligned to 4 bytes; `updated` may be
// `parameters`. `note`: if a parameter or its state is NaN or infinite
// afterwards, the kernel notes one of them. Work is queued on `stream`; the
// calls do not wait. Errors: those of the launch.

cudaError_t ApplySgdCuda(const SgdStep& step, int64_t length,
                         const float* gradient, const float* parameters,
                         float* velocity, float* updated,
                         const NoteBadResult& note, cudaStream_t stream);
cudaError_t ApplyAdamCuda(const AdamStep& step, int64_t length,
                          const float* gradient, const float* parameters,
                          float* first, float* second, float* updated,
                          const NoteBadResult& note, cudaStream_t stream);

// Notes one of `count` values that are NaN or infinite, if there is any.
cudaError_t CheckFiniteCuda(const float* values, int64_t count,
                            const NoteBadResult& note, cudaStream_t stream);

}  // namespace nereus
