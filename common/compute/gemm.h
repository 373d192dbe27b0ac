#ifndef NEREUS_COMMON_COMPUTE_GEMM_H_
#define NEREUS_COMMON_COMPUTE_GEMM_H_

#include <cstdint>

namespace nereus {

// c = alpha * op(a) * op(b) + beta * c, float32, row-major, host memory.
//   op(a) is rows x inner, op(b) is inner x columns, c is rows x columns, none
//   padded. With beta 0, c need not be initialised.
// By OpenBLAS. The same inputs give the same bits on machines of one kind of
// CPU; the number of threads (SetGemmThreads) does not change the order of
// additions over `inner`, other CPUs may.
enum class Transpose { kNo, kYes };
void Gemm(Transpose transpose_a, Transpose transpose_b, int64_t rows,
          int64_t columns, int64_t inner, float alpha, const float* a,
          const float* b, float beta, float* c);

// Threads that each Gemm of this process may use, >= 1.
void SetGemmThreads(int threads);

// The gradient of a fully connected layer from `rows` rows of factors, scaled:
//   gradient[0, m * n) = scale * output_gradient^T * input         (m x n)
//   gradient[m * n, m * n + m) = scale * column sums, if `bias`
// output_gradient: rows x m, input: rows x n. Columns are summed in row order,
// in double.
void FactorGradient(int64_t rows, int64_t m, int64_t n, bool bias, float scale,
                    const float* output_gradient, const float* input,
                    float* gradient);

}  // namespace nereus

#endif  // NEREUS_COMMON_COMPUTE_GEMM_H_
