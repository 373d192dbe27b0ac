#include "common/compute/gemm.h"

#include <cblas.h>

#include <vector>

namespace nereus {

void Gemm(Transpose transpose_a, Transpose transpose_b, int64_t rows,
          int64_t columns, int64_t inner, float alpha, const float* a,
          const float* b, float beta, float* c) {
  if (rows == 0 || columns == 0) return;
  const bool a_flipped = transpose_a == Transpose::kYes;
  const bool b_flipped = transpose_b == Transpose::kYes;
  cblas_sgemm(CblasRowMajor, a_flipped ? CblasTrans : CblasNoTrans,
              b_flipped ? CblasTrans : CblasNoTrans, rows, columns, inner,
              alpha, a, a_flipped ? rows : inner, b,
              b_flipped ? inner : columns, beta, c, columns);
}

void SetGemmThreads(int threads) { openblas_set_num_threads(threads); }

void FactorGradient(int64_t rows, int64_t m, int64_t n, bool bias, float scale,
                    const float* output_gradient, const float* input,
                    float* gradient) {
  Gemm(Transpose::kYes, Transpose::kNo, m, n, rows, scale, output_gradient,
       input, 0.0f, gradient);
  if (!bias) return;
  std::vector<double> sums(m, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < m; ++i) sums[i] += output_gradient[row * m + i];
  }
  for (int64_t i = 0; i < m; ++i) {
    gradient[m * n + i] = static_cast<float>(scale * sums[i]);
  }
}

}  // namespace nereus
