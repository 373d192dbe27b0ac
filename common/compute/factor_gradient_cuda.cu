#include "common/compute/factor_gradient_cuda.h"
#include "common/compute/frame_halves_cuda.h"
#include "common/compute/launch_cuda.h"

namespace nereus {
namespace {

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

// Row-major a^T b, as cuBLAS sees it: column-major b a^T.
cublasStatus_t Multiply(cublasHandle_t handle, cudaDataType_t type,
                        cublasComputeType_t compute, int64_t rows, int64_t m,
                        int64_t n, float scale, const void* output_gradient,
                        const void* input, float* gradient) {
  const float zero = 0.0f;
  return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, static_cast<int>(n),
                      static_cast<int>(m), static_cast<int>(rows), &scale,
                      input, type, static_cast<int>(n), output_gradient, type,
                      static_cast<int>(m), &zero, gradient, CUDA_R_32F,
                      static_cast<int>(n), compute, CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t MultiplyBfloat16(cublasHandle_t handle, int64_t rows, int64_t m,
                                int64_t n, float scale,
                                const float* output_gradient,
                                const float* input, uint16_t* scratch,
                                float* gradient, cudaStream_t stream) {
  uint16_t* const narrow_output = scratch;
  uint16_t* const narrow_input = scratch + rows * m;
  cudaError_t error =
      ToBfloat16Cuda(output_gradient, rows * m, narrow_output, stream);
  if (error == cudaSuccess) {
    error = ToBfloat16Cuda(input, rows * n, narrow_input, stream);
  }
  if (error != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  return Multiply(handle, CUDA_R_16BF, CUBLAS_COMPUTE_32F, rows, m, n, scale,
                  narrow_output, narrow_input, gradient);
}

}  // namespace

cudaError_t ColumnSumsCuda(int64_t rows, int64_t columns, float scale,
                           const float* matrix, float* sums,
                           cudaStream_t stream) {
  return Launch(ColumnSumsKernel, BlocksFor(columns, kThreads), kThreads,
                stream, rows, columns, scale, matrix, sums);
}

cublasStatus_t FactorGradientCuda(cublasHandle_t handle,
                                  FactorPrecision precision, int64_t rows,
                                  int64_t m, int64_t n, bool bias, float scale,
                                  const float* output_gradient,
                                  const float* input, uint16_t* scratch,
                                  float* gradient, cudaStream_t stream) {
  if (rows == 0) {  // No product at all, for cuBLAS.
    const size_t values = static_cast<size_t>(m * n + (bias ? m : 0));
    const cudaError_t error =
        cudaMemsetAsync(gradient, 0, values * sizeof(float), stream);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                : CUBLAS_STATUS_EXECUTION_FAILED;
  }
  cublasStatus_t status = cublasSetStream(handle, stream);
  if (status == CUBLAS_STATUS_SUCCESS && m > 0 && n > 0) {
    status =
        precision == FactorPrecision::kBfloat16
            ? MultiplyBfloat16(handle, rows, m, n, scale, output_gradient,
                               input, scratch, gradient, stream)
            : Multiply(handle, CUDA_R_32F,
                       precision == FactorPrecision::kTf32
                           ? CUBLAS_COMPUTE_32F_FAST_TF32
                           : CUBLAS_COMPUTE_32F_PEDANTIC,
                       rows, m, n, scale, output_gradient, input, gradient);
  }
  if (status != CUBLAS_STATUS_SUCCESS || !bias) return status;
  const cudaError_t error =
      ColumnSumsCuda(rows, m, scale, output_gradient, gradient + m * n, stream);
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                              : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace nereus
