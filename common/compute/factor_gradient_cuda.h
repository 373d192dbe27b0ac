#ifndef NEREUS_COMMON_COMPUTE_FACTOR_GRADIENT_CUDA_H_
#define NEREUS_COMMON_COMPUTE_FACTOR_GRADIENT_CUDA_H_

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/compute/factor_precision.h"

namespace nereus {

// FactorGradient (common/compute/factor_gradient.h) on a GPU, by one product of
// cuBLAS over all rows, those of all workers one after the other:
//   gradient[0, m * n) = scale * output_gradient^T * input         (m x n)
//   gradient[m * n, m * n + m) = scale * column sums, if `bias`
//
//   output_gradient  float32, {rows, m}
//   input            float32, {rows, n}
//   gradient         float32, {m * n} or {m * n + m}; overlaps neither
//   scratch          for kBfloat16: {rows * (m + n)}, else may be null
//
// cuBLAS adds in an order of its own: the same bits on GPUs of one kind with
// one version of it, not those of a CPU. An element differs from the exact sum
// by at most (rows + 1) * 2^-24 of the sum of the absolute products; a factor
// that is cut to 11 bits (kTf32) by 2^-10, one that is rounded to 8 by 2^-8,
// which twice makes 2^-9 and 2^-7 of it more. The bias has the CPU's bits.
//
// Pointers are of device memory, aligned to their types. Work is queued on
// `stream`, which the handle is set to; nothing waits. Sizes are below 2^31.
// Errors: what cuBLAS, or the launch (CUBLAS_STATUS_EXECUTION_FAILED), came to.
cublasStatus_t FactorGradientCuda(cublasHandle_t handle,
                                  FactorPrecision precision, int64_t rows,
                                  int64_t m, int64_t n, bool bias, float scale,
                                  const float* output_gradient,
                                  const float* input, uint16_t* scratch,
                                  float* gradient, cudaStream_t stream);

// sums[i] = scale * (the sum of column i), in double, row after row: the same
// bits as on a CPU. matrix: {rows, columns}, sums: {columns}.
cudaError_t ColumnSumsCuda(int64_t rows, int64_t columns, float scale,
                           const float* matrix, float* sums,
                           cudaStream_t stream);

}  // namespace nereus

#endif  // NEREUS_COMMON_COMPUTE_FACTOR_GRADIENT_CUDA_H_
