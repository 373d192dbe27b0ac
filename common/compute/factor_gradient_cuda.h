#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// Computes FactorGradient (common/compute/factor_gradient.h) on a GPU, with one
// product of cuBLAS over the rows of all workers:
//
//   gradient[0, m * n) = scale * output_gradient^T * input         (m x n)
//   gradient[m * n, m * n + m) = scale * column sums, if `bias`
//
//   output_gradient  float32, {rows, m}
//   input            float32, {rows, n}
//   gradient         float32, {m * n} or {m * n + m}; overlaps no factor
//
// cuBLAS chooses the order of additions: two GPUs of one kind with one version
// of cuBLAS give the same bits, and a CPU gives other bits. An element differs
// from the exact sum by at most (rows + 1) * 2^-24 of the sum of the absolute
// products. The bias has the bits of FactorGradient.
//
// Pointers are of device memory, aligned to their types. Sizes are below 2^31.
// The work is queued on `stream`; the call does not wait. REQUIRES: the
// handle's stream is `stream`. Returns the error of cuBLAS;
// CUBLAS_STATUS_EXECUTION_FAILED if a kernel does not start.
cublasStatus_t FactorGradientCuda(cublasHandle_t handle, int64_t rows,
                                  int64_t m, int64_t n, bool bias, float scale,
                                  const float* output_gradient,
                                  const float* input, float* gradient,
                                  cudaStream_t stream);

// Computes sum[i] = (sum[i] + addend[i]) * scale, with the bits of AddScaled
// (common/compute/vectors.h). Device memory, {count}. The work is queued on
// `stream`; the call does not wait. Returns the error of the launch.
cudaError_t AddScaledCuda(const float* addend, int64_t count, float scale,
                          float* sum, cudaStream_t stream);

// Computes sums[i] = scale * (sum of column i), in double, row after row: the
// bits are those of FactorGradientBias. Device memory; matrix: {rows, columns},
// sums: {columns}. The work is queued on `stream`; the call does not wait.
// Returns the error of the launch.
cudaError_t ColumnSumsCuda(int64_t rows, int64_t columns, float scale,
                           const float* matrix, float* sums,
                           cudaStream_t stream);

}  // namespace nereus
