#pragma once

#include <cstdint>

namespace nereus {

// Form of an operand: op(x) is x (kNo) or its transpose (kYes).
enum class Transpose { kNo, kYes };
// Computes c = alpha * op(a) * op(b) + beta * c, float32, row-major, host
// memory. op(a) is rows x inner, op(b) is inner x columns, c is rows x columns;
// rows follow each other without padding. With beta 0, c need not be
// initialised.
//
// Uses OpenBLAS, whose bits depend on the kind of CPU and on the number of
// threads. Values that must be equal on several machines need FactorGradient
// (factor_gradient.h) instead: replicas that are updated with the results of
// Gemm would become different.
void Gemm(Transpose transpose_a, Transpose transpose_b, int64_t rows,
          int64_t columns, int64_t inner, float alpha, const float* a,
          const float* b, float beta, float* c);

// Sets the number of threads that each Gemm of this process may use, >= 1.
void SetGemmThreads(int threads);

}  // namespace nereus
