#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/trainer/image_shape.h"

namespace nereus {

// Kernels of a network's layers, except for matrix products, which cuBLAS
// computes. Each call but AddBiasCuda and SpinCuda does the arithmetic of its
// CPU counterpart (layers.h) in the same order, so the bits are equal.
//
// Pointers are to device memory, aligned to their types. Results overlap no
// argument, unless a call works in place. Calls queue their work on `stream`
// and return the error of the launch; nothing waits.

// Adds bias[j] to values[i][j], in place. values: {rows, columns}.
cudaError_t AddBiasCuda(int64_t rows, int64_t columns, const float* bias,
                        float* values, cudaStream_t stream);

// Counterparts of layers.h.
cudaError_t ReluForwardCuda(int64_t length, float* values, cudaStream_t stream);
cudaError_t ReluBackwardCuda(int64_t length, const float* values,
                             float* gradient, cudaStream_t stream);

cudaError_t ImagesToPatchesCuda(const ConvolutionShape& shape, int64_t images,
                                const float* input, float* patches,
                                cudaStream_t stream);
cudaError_t PatchesToImagesCuda(const ConvolutionShape& shape, int64_t images,
                                const float* patches, float* input,
                                cudaStream_t stream);

cudaError_t MaxPoolForwardCuda(const ImageShape& shape, int64_t images,
                               const float* input, float* output,
                               cudaStream_t stream);
cudaError_t MaxPoolBackwardCuda(const ImageShape& shape, int64_t images,
                                const float* input,
                                const float* output_gradient,
                                float* input_gradient, cudaStream_t stream);

// Queues work on `stream` that takes `nanoseconds` and computes nothing. The
// call does not wait. On a GPU the work is a kernel of one thread, which reads
// the GPU's clock: one multiprocessor is busy, and the memory is not. In the
// emulation of CUDA, the stream sleeps. Errors: those of the launch.
cudaError_t SpinCuda(int64_t nanoseconds, cudaStream_t stream);

}  // namespace nereus
