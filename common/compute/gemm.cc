#include "common/compute/gemm.h"

#include <cblas.h>

namespace nereus {

void Gemm(Transpose transpose_a, Transpose transpose_b, int64_t rows,
          int64_t columns, int64_t inner, float alpha, const float* a,
          const float* b, float beta, float* c) {
  // An empty result needs no product, and OpenBLAS refuses its strides of 0.
  if (rows == 0 || columns == 0) return;
  const bool a_flipped = transpose_a == Transpose::kYes;
  const bool b_flipped = transpose_b == Transpose::kYes;
  cblas_sgemm(CblasRowMajor, a_flipped ? CblasTrans : CblasNoTrans,
              b_flipped ? CblasTrans : CblasNoTrans, rows, columns, inner,
              alpha, a, a_flipped ? rows : inner, b,
              b_flipped ? inner : columns, beta, c, columns);
}

void SetGemmThreads(int threads) { openblas_set_num_threads(threads); }

}  // namespace nereus
