#include "common/compute/factor_gradient.h"

#include <algorithm>
#include <cmath>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nereus {
namespace {

// Sizes of the parts in which the product is computed. A block is some rows of
// the factors. A tile is a rectangle of the result: it stays in registers while
// the products of one block are added to it. A panel is the part of a block
// that one tile needs, copied to contiguous memory: it stays in the L1 or the
// L2 cache. Other sizes give the same bits, because each element is summed in
// row order. But Avx2Tile works only with these sizes, and the header states
// the memory that follows from them.
//
// Rows of a tile, along m.
constexpr int64_t kTileRows = 6;
constexpr int64_t kTileColumns = 16;  // Columns of a tile, along n.
constexpr int64_t kBlock = 512;       // Rows of the factors in one block.

// Adds a^T b to one tile: c (kTileRows x kTileColumns, row stride `stride`) +=
// a^T b over `count` rows of the packed panels a (count x kTileRows) and b
// (count x kTileColumns).
using TileFunction = void (*)(int64_t count, const float* a, const float* b,
                              float* c, int64_t stride);

// TileFunction without vectors. std::fma rounds once, as the vector instruction
// does, so the bits are those of Avx2Tile.
void PlainTile(int64_t count, const float* a, const float* b, float* c,
               int64_t stride) {
  for (int64_t i = 0; i < kTileRows; ++i) {
    for (int64_t j = 0; j < kTileColumns; ++j) {
      float sum = c[i * stride + j];
      for (int64_t row = 0; row < count; ++row) {
        sum = std::fma(a[row * kTileRows + i], b[row * kTileColumns + j], sum);
      }
      c[i * stride + j] = sum;
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void Avx2Tile(int64_t count, const float* a,
                                                  const float* b, float* c,
                                                  int64_t stride) {
  // 12 registers of sums, 2 of b and 1 of a: 15 of the 16 that AVX2 has.
  __m256 sums[kTileRows][2];
#pragma GCC unroll 6
  for (int64_t i = 0; i < kTileRows; ++i) {
    sums[i][0] = _mm256_loadu_ps(c + i * stride);
    sums[i][1] = _mm256_loadu_ps(c + i * stride + 8);
  }
  for (int64_t row = 0; row < count; ++row) {
    const __m256 low = _mm256_loadu_ps(b + row * kTileColumns);
    const __m256 high = _mm256_loadu_ps(b + row * kTileColumns + 8);
#pragma GCC unroll 6
    for (int64_t i = 0; i < kTileRows; ++i) {
      const __m256 value = _mm256_broadcast_ss(a + row * kTileRows + i);
      sums[i][0] = _mm256_fmadd_ps(value, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(value, high, sums[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int64_t i = 0; i < kTileRows; ++i) {
    _mm256_storeu_ps(c + i * stride, sums[i][0]);
    _mm256_storeu_ps(c + i * stride + 8, sums[i][1]);
  }
}
#endif

// Returns the fastest tile that this CPU can run.
TileFunction ChooseTile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return Avx2Tile;
  }
#endif
  return PlainTile;
}

// Copies columns [first, first + width) of `count` rows of `matrix` (row stride
// `stride`) into a panel of `panel_width` columns; the rest of the panel is 0.
void PackPanel(const float* matrix, int64_t stride, int64_t count,
               int64_t first, int64_t width, int64_t panel_width,
               float* panel) {
  for (int64_t row = 0; row < count; ++row) {
    const float* from = matrix + row * stride + first;
    float* to = panel + row * panel_width;
    std::copy(from, from + width, to);
    std::fill(to + width, to + panel_width, 0.0f);
  }
}

// Returns the number of panels that cover `columns`.
int64_t CountPanels(int64_t columns, int64_t width) {
  return (columns + width - 1) / width;
}

// Adds one block of rows: gradient += output_gradient^T * input. The gradient
// has m rows; `stride` is the row stride of output_gradient.
void AddBlock(TileFunction tile, int64_t count, int64_t m, int64_t n,
              const float* output_gradient, int64_t stride, const float* input,
              float* gradient) {
  thread_local std::vector<float> packed_a;
  thread_local std::vector<float> packed_b;
  const int64_t panels = CountPanels(m, kTileRows);
  const int64_t panel_floats = kTileRows * count;
  packed_a.resize(std::max<size_t>(packed_a.size(), panels * panel_floats));
  packed_b.resize(kBlock * kTileColumns);
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t first = panel * kTileRows;
    PackPanel(output_gradient, stride, count, first,
              std::min(kTileRows, m - first), kTileRows,
              packed_a.data() + panel * panel_floats);
  }
  for (int64_t j = 0; j < n; j += kTileColumns) {
    const int64_t columns = std::min(kTileColumns, n - j);
    PackPanel(input, n, count, j, columns, kTileColumns, packed_b.data());
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t i = panel * kTileRows;
      const int64_t rows = std::min(kTileRows, m - i);
      const float* a = packed_a.data() + panel * panel_floats;
      if (rows == kTileRows && columns == kTileColumns) {
        tile(count, a, packed_b.data(), gradient + i * n + j, n);
        continue;
      }
      // A tile at the edge of the result is smaller. Copies it to a tile of
      // full size, and back after the sum, so that `tile` sums these elements,
      // too, and gives the same bits.
      float edge[kTileRows * kTileColumns] = {};
      for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(gradient + (i + row) * n + j, columns,
                    edge + row * kTileColumns);
      }
      tile(count, a, packed_b.data(), edge, kTileColumns);
      for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(edge + row * kTileColumns, columns,
                    gradient + (i + row) * n + j);
      }
    }
  }
}

}  // namespace

void FactorGradient(int64_t rows, int64_t m, int64_t n, bool bias, float scale,
                    const float* output_gradient, const float* input,
                    float* gradient) {
  FactorGradientRows(rows, m, n, /*begin=*/0, /*end=*/m, scale, output_gradient,
                     input, gradient);
  if (!bias) return;
  FactorGradientBias(rows, m, scale, output_gradient, gradient + m * n);
}

void FactorGradientRows(int64_t rows, int64_t m, int64_t n, int64_t begin,
                        int64_t end, float scale, const float* output_gradient,
                        const float* input, float* part) {
  static const TileFunction tile = ChooseTile();
  const int64_t count = (end - begin) * n;
  std::fill(part, part + count, 0.0f);
  for (int64_t row = 0; row < rows; row += kBlock) {
    AddBlock(tile, std::min(kBlock, rows - row), end - begin, n,
             output_gradient + row * m + begin, m, input + row * n, part);
  }
  if (scale == 1.0f) return;
  for (int64_t i = 0; i < count; ++i) part[i] *= scale;
}

// Sums in double and row order.
void FactorGradientBias(int64_t rows, int64_t m, float scale,
                        const float* output_gradient, float* bias) {
  thread_local std::vector<double> sums;
  sums.assign(m, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = output_gradient + row * m;
    for (int64_t i = 0; i < m; ++i) sums[i] += from[i];
  }
  for (int64_t i = 0; i < m; ++i) {
    bias[i] = static_cast<float>(scale * sums[i]);
  }
}

}  // namespace nereus
