// The part of cuBLAS that Nereus uses, on the CPU. Products run on the streams
// of emulated_cuda.cc.

#include <cublas_v2.h>

#include <cstdint>

#include "tests/gpu/cuda_emulation.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

extern "C" {

const char* cublasGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS"
                                         : "emulated error";
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return cublasGetStatusName(status);
}
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* workspace,
                                     size_t bytes) {
  const bool sensible =
      reinterpret_cast<uintptr_t>(workspace) % 256 == 0 && bytes > 0;
  return sensible ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// Computes c = alpha * op(a) * op(b) of column-major matrices, with beta 0.
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a,
                            cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a,
                            cudaDataType_t a_type, int lda, const void* b,
                            cudaDataType_t b_type, int ldb, const void* beta,
                            void* c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  const bool sensible =
      m > 0 && n > 0 && k > 0 && lda >= (op_a == CUBLAS_OP_N ? m : k) &&
      ldb >= (op_b == CUBLAS_OP_N ? k : n) && ldc >= m &&
      a_type == CUDA_R_32F && b_type == CUDA_R_32F && c_type == CUDA_R_32F &&
      compute == CUBLAS_COMPUTE_32F_PEDANTIC &&
      *static_cast<const float*>(beta) == 0.0f;
  if (!sensible) return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha);
  const auto* const left = static_cast<const float*>(a);
  const auto* const right = static_cast<const float*>(b);
  auto* const out = static_cast<float*>(c);
  const cudaError_t queued = cuda_emulation::Enqueue(handle->stream, [=] {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0.0f;
        for (int64_t l = 0; l < k; ++l) {
          const int64_t at_a = op_a == CUBLAS_OP_N ? i + l * lda : l + i * lda;
          const int64_t at_b = op_b == CUBLAS_OP_N ? l + j * ldb : j + l * ldb;
          sum += left[at_a] * right[at_b];
        }
        out[i + j * ldc] = scale * sum;
      }
    }
  });
  return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                               : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
