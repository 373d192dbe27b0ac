#include "common/compute/factor_gradient_cuda.h"
#include "common/compute/launch_cuda.h"

namespace nereus {
namespace {

// Runs one thread for each column, so that the order of additions is the CPU's.
__global__ void ColumnSumsKernel(int64_t rows, int64_t columns, float scale,
                                 const float* matrix, float* sums) {
  const int64_t column =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  double sum = 0.0;
#pragma unroll 8
  for (int64_t row = 0; row < rows; ++row) {
    sum += matrix[row * columns + column];
  }
  sums[column] = static_cast<float>(scale * sum);
}

__global__ void AddScaledKernel(const float* addend, int64_t count, float scale,
                                float* sum) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) sum[i] = (sum[i] + addend[i]) * scale;
}

}  // namespace

cudaError_t AddScaledCuda(const float* addend, int64_t count, float scale,
                          float* sum, cudaStream_t stream) {
  return Launch(AddScaledKernel, BlocksFor(count, kThreads), kThreads, stream,
                addend, count, scale, sum);
}

cudaError_t ColumnSumsCuda(int64_t rows, int64_t columns, float scale,
                           const float* matrix, float* sums,
                           cudaStream_t stream) {
  return Launch(ColumnSumsKernel, BlocksFor(columns, kThreads), kThreads,
                stream, rows, columns, scale, matrix, sums);
}

cublasStatus_t FactorGradientCuda(cublasHandle_t handle, int64_t rows,
                                  int64_t m, int64_t n, bool bias, float scale,
                                  const float* output_gradient,
                                  const float* input, float* gradient,
                                  cudaStream_t stream) {
  // cuBLAS refuses a product without terms.
  if (rows == 0) {
    const size_t values = static_cast<size_t>(m * n + (bias ? m : 0));
    const cudaError_t error =
        cudaMemsetAsync(gradient, 0, values * sizeof(float), stream);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                : CUBLAS_STATUS_EXECUTION_FAILED;
  }
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (m > 0 && n > 0) {
    // cuBLAS takes its matrices column by column, so it sees each row-major
    // matrix as its transpose. Therefore the call multiplies in the other
    // order: the transpose of the gradient is input^T * output_gradient.
    // PEDANTIC forbids shortcuts that round to fewer bits, such as tensor
    // cores.
    const float zero = 0.0f;
    status = cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, static_cast<int>(n),
                          static_cast<int>(m), static_cast<int>(rows), &scale,
                          input, CUDA_R_32F, static_cast<int>(n),
                          output_gradient, CUDA_R_32F, static_cast<int>(m),
                          &zero, gradient, CUDA_R_32F, static_cast<int>(n),
                          CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT);
  }
  if (status != CUBLAS_STATUS_SUCCESS || !bias) return status;
  const cudaError_t error =
      ColumnSumsCuda(rows, m, scale, output_gradient, gradient + m * n, stream);
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                              : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace nereus
