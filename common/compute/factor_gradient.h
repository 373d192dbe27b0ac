#pragma once

#include <cstdint>

namespace nereus {

// Computes the gradient of a fully connected layer from `rows` rows of factors
// (sufficient factors: Zhang et al., "Poseidon", section 3), scaled:
//
//   gradient[0, m * n) = scale * output_gradient^T * input         (m x n)
//   gradient[m * n, m * n + m) = scale * (column sums of output_gradient), the
//                                gradient of the bias; only if `bias`
//
// output_gradient: rows x m, input: rows x n; float32, row-major, host memory.
// All sizes >= 0; `gradient` need not be initialised and overlaps neither
// factor.
//
// Equal inputs give equal bits on every machine. Several workers compute the
// same product, and their replicas stay equal only because the bits are equal.
// The sum of an element has a fixed order: row by row, with one fused
// multiply-add for each row. The bias is summed in double, with one addition
// for each row. Neither sum depends on the CPU's vectors or on the way in which
// the work is cut. OpenBLAS does not promise that: its bits change with the
// number of threads and with the kind of CPU.
//
// Any thread may call these functions. Each calling thread keeps buffers for
// parts of the factors and for the bias: at most 512 * (m + 22) floats and m
// doubles, for the largest m of its calls.
void FactorGradient(int64_t rows, int64_t m, int64_t n, bool bias, float scale,
                    const float* output_gradient, const float* input,
                    float* gradient);

// Computes a part of the gradient, with the bits of FactorGradient: rows
// [begin, end) of the m x n matrix, without the bias. Writes them to `part`,
// (end - begin) x n. The factors are whole: rows x m and rows x n.
void FactorGradientRows(int64_t rows, int64_t m, int64_t n, int64_t begin,
                        int64_t end, float scale, const float* output_gradient,
                        const float* input, float* part);

// Computes the gradient of the bias, with the bits of FactorGradient. Writes it
// to `bias`: m values.
void FactorGradientBias(int64_t rows, int64_t m, float scale,
                        const float* output_gradient, float* bias);

}  // namespace nereus
