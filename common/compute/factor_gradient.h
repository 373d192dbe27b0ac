#pragma once

#include <cstdint>

namespace nereus {

// The gradient of a fully connected layer from `rows` rows of factors, scaled:
//   gradient[0, m * n) = scale * output_gradient^T * input         (m x n)
//   gradient[m * n, m * n + m) = scale * column sums, if `bias`
// output_gradient: rows x m, input: rows x n; float32, row-major, host memory.
// All sizes >= 0; `gradient` need not be initialised and overlaps neither
// factor.
//
// The same inputs give the same bits on every machine, which is what keeps
// replicas equal that each multiply for themselves: an element is summed in row
// order, one fused multiply-add a row (the bias in double, one add a row),
// whatever the CPU offers and however the work is cut. No BLAS library promises
// that: OpenBLAS's bits change with the number of threads and with the kind of
// CPU.
//
// Keeps packed copies of both factors' current rows per calling thread, at most
// 512 * (m + 22) floats.
void FactorGradient(int64_t rows, int64_t m, int64_t n, bool bias, float scale,
                    const float* output_gradient, const float* input,
                    float* gradient);

// The reference: plain loops in the order that FactorGradient promises, hence
// equal to it bit for bit. Never optimise this one.
void FactorGradientReference(int64_t rows, int64_t m, int64_t n, bool bias,
                             float scale, const float* output_gradient,
                             const float* input, float* gradient);

}  // namespace nereus
