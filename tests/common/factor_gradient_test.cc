// Products of factors by our own loops, and products of matrices by OpenBLAS.

#include "common/compute/factor_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/random.h"
#include "common/compute/gemm.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

std::vector<float> RandomFloats(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(random.Uniform() * 2 - 1);
  }
  return values;
}

// Computes FactorGradient by plain loops, in the order that FactorGradient
// promises, and so with the same bits. Never optimise this function.
void FactorGradientReference(int64_t rows, int64_t m, int64_t n, bool bias,
                             float scale, const float* output_gradient,
                             const float* input, float* gradient) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int64_t row = 0; row < rows; ++row) {
        sum = std::fma(output_gradient[row * m + i], input[row * n + j], sum);
      }
      gradient[i * n + j] = scale * sum;
    }
    if (!bias) continue;
    double sum = 0.0;
    for (int64_t row = 0; row < rows; ++row)
      sum += output_gradient[row * m + i];
    gradient[m * n + i] = static_cast<float>(scale * sum);
  }
}

// The lengths are 0, 1, and sizes around a tile (6 x 16) and a block of rows
// (512).
TEST(FactorGradientTest, ProductHasTheBitsOfTheReference) {
  Random random(3);
  for (const int64_t rows : {0, 1, 2, 511, 512, 513, 1100}) {
    for (const int64_t m : {0, 1, 5, 6, 7, 20}) {
      for (const int64_t n : {0, 1, 15, 16, 17, 40}) {
        const std::vector<float> a = RandomFloats(random, rows * m);
        const std::vector<float> b = RandomFloats(random, rows * n);
        for (const bool bias : {false, true}) {
          std::vector<float> fast(m * n + m, 7.0f);
          std::vector<float> plain(m * n + m, 7.0f);
          FactorGradient(rows, m, n, bias, 0.3f, a.data(), b.data(),
                         fast.data());
          FactorGradientReference(rows, m, n, bias, 0.3f, a.data(), b.data(),
                                  plain.data());
          ASSERT_EQ(fast, plain) << rows << " rows, " << m << "x" << n;
        }
      }
    }
  }
}

// The parts begin and end within tiles (6 rows), too.
TEST(FactorGradientTest, PartsHaveTheBitsOfTheWhole) {
  constexpr int64_t kRows = 600;
  constexpr int64_t kM = 29;
  constexpr int64_t kN = 35;
  Random random(9);
  const std::vector<float> a = RandomFloats(random, kRows * kM);
  const std::vector<float> b = RandomFloats(random, kRows * kN);
  std::vector<float> whole(kM * kN + kM);
  FactorGradient(kRows, kM, kN, true, 0.3f, a.data(), b.data(), whole.data());
  for (const int64_t part_rows : {1, 5, 6, 7, 13, 28, 29}) {
    std::vector<float> parts(kM * kN + kM, 7.0f);
    for (int64_t begin = 0; begin < kM; begin += part_rows) {
      FactorGradientRows(kRows, kM, kN, begin, std::min(begin + part_rows, kM),
                         0.3f, a.data(), b.data(), parts.data() + begin * kN);
    }
    FactorGradientBias(kRows, kM, 0.3f, a.data(), parts.data() + kM * kN);
    EXPECT_EQ(parts, whole) << part_rows << " rows in a part";
  }
}

// Two workers must agree even if their frameworks configure OpenBLAS
// differently. Products by the GEMM of OpenBLAS did not agree.
TEST(FactorGradientTest, BlasThreadCountDoesNotChangeTheBits) {
  Random random(6);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto m = static_cast<int64_t>(1 + random.Below(200));
    const auto n = static_cast<int64_t>(1 + random.Below(200));
    const auto rows = static_cast<int64_t>(1 + random.Below(900));
    const std::vector<float> a = RandomFloats(random, rows * m);
    const std::vector<float> b = RandomFloats(random, rows * n);
    SetGemmThreads(1);
    std::vector<float> one(m * n);
    FactorGradient(rows, m, n, false, 0.25f, a.data(), b.data(), one.data());
    for (const int threads : {2, 4}) {
      SetGemmThreads(threads);
      std::vector<float> many(m * n);
      FactorGradient(rows, m, n, false, 0.25f, a.data(), b.data(), many.data());
      SetGemmThreads(1);
      ASSERT_EQ(one, many) << rows << " rows, " << m << "x" << n << ", "
                           << threads << " threads";
    }
  }
}

TEST(FactorGradientTest, ThreadsMayMultiplyAtOnce) {
  Random random(7);
  const std::vector<float> a = RandomFloats(random, 700 * 30);
  const std::vector<float> b = RandomFloats(random, 700 * 50);
  std::vector<float> expected(30 * 50 + 30);
  FactorGradient(700, 30, 50, true, 1.0f, a.data(), b.data(), expected.data());
  std::vector<std::vector<float>> results(4, std::vector<float>(30 * 50 + 30));
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      FactorGradient(700, 30, 50, true, 1.0f, a.data(), b.data(),
                     result.data());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

// The address of the factors must not change the bits, because peers keep their
// copies at other addresses.
TEST(FactorGradientTest, AlignmentDoesNotChangeTheBits) {
  Random random(4);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto m = static_cast<int64_t>(1 + random.Below(60));
    const auto n = static_cast<int64_t>(1 + random.Below(60));
    const auto rows = static_cast<int64_t>(1 + random.Below(100));
    const std::vector<float> a = RandomFloats(random, rows * m);
    const std::vector<float> b = RandomFloats(random, rows * n);
    std::vector<float> first(m * n);
    FactorGradient(rows, m, n, false, 0.25f, a.data(), b.data(), first.data());
    for (int shift = 1; shift < 4; ++shift) {
      std::vector<float> moved_a(shift, 0.0f);
      moved_a.insert(moved_a.end(), a.begin(), a.end());
      std::vector<float> moved_b(2 * shift, 0.0f);
      moved_b.insert(moved_b.end(), b.begin(), b.end());
      std::vector<float> second(m * n);
      FactorGradient(rows, m, n, false, 0.25f, moved_a.data() + shift,
                     moved_b.data() + 2 * shift, second.data());
      ASSERT_EQ(first, second) << rows << " rows " << m << "x" << n;
    }
  }
}

// In float32 these sums would lose the small values.
TEST(FactorGradientTest, ColumnsAreSummedInDouble) {
  constexpr int64_t kRows = 1000;
  std::vector<float> output_gradient(kRows, 1.0f);
  output_gradient[0] = 0x1.0p30f;
  output_gradient[kRows - 1] = -0x1.0p30f;
  const std::vector<float> input(kRows, 0.0f);
  float gradient[2] = {};
  FactorGradient(kRows, 1, 1, true, 1.0f, output_gradient.data(), input.data(),
                 gradient);
  EXPECT_EQ(gradient[0], 0.0f);
  EXPECT_EQ(gradient[1], 998.0f);
}

constexpr double kUnit = 0x1.0p-24;  // Relative error of one float32 rounding.

// A product, and its reference by plain loops in double.
struct Product {
  Transpose transpose_a;
  Transpose transpose_b;
  int64_t rows, columns, inner;
  float alpha, beta;
  std::vector<float> a, b, c;

  float A(int64_t i, int64_t k) const {
    return transpose_a == Transpose::kYes ? a[k * rows + i] : a[i * inner + k];
  }
  float B(int64_t k, int64_t j) const {
    return transpose_b == Transpose::kYes ? b[j * inner + k]
                                          : b[k * columns + j];
  }

  // Roundings of each term: its product, at most `inner` additions in any
  // order, the factor alpha, and the addition of beta * c. Each rounding is off
  // by at most 2^-24 of the sum of the absolute values. One per cent covers
  // products of errors.
  void ExpectEqualTo(const std::vector<float>& result) const {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        double size = 0;
        for (int64_t k = 0; k < inner; ++k) {
          const double term = double{A(i, k)} * B(k, j);
          sum += term;
          size += std::abs(term);
        }
        const double old = beta == 0 ? 0 : double{beta} * c[i * columns + j];
        const double expected = alpha * sum + old;
        const double bound = 1.01 * static_cast<double>(inner + 4) * kUnit *
                             (std::abs(alpha) * size + std::abs(old));
        ASSERT_NEAR(result[i * columns + j], expected, bound)
            << i << ", " << j << " of " << rows << "x" << columns << "x"
            << inner;
      }
    }
  }

  void Check() const {
    std::vector<float> result = c;
    Gemm(transpose_a, transpose_b, rows, columns, inner, alpha, a.data(),
         b.data(), beta, result.data());
    ExpectEqualTo(result);
  }
};

Product RandomProduct(Random& random, Transpose transpose_a,
                      Transpose transpose_b, int64_t rows, int64_t columns,
                      int64_t inner) {
  Product product{transpose_a, transpose_b, rows, columns, inner,
                  0.75f,       0.5f,        {},   {},      {}};
  product.a = RandomFloats(random, rows * inner);
  product.b = RandomFloats(random, inner * columns);
  product.c = RandomFloats(random, rows * columns);
  return product;
}

class GemmTransposeTest
    : public testing::TestWithParam<std::tuple<Transpose, Transpose>> {};

TEST_P(GemmTransposeTest, ProductIsRightForAllSmallSizes) {
  const auto [transpose_a, transpose_b] = GetParam();
  Random random(1);
  const int64_t sizes[] = {0, 1, 2, 3, 5, 8, 17};
  for (const int64_t rows : sizes) {
    for (const int64_t columns : sizes) {
      for (const int64_t inner : sizes) {
        RandomProduct(random, transpose_a, transpose_b, rows, columns, inner)
            .Check();
      }
    }
  }
}

TEST_P(GemmTransposeTest, ProductIsRightForRandomSizes) {
  const auto [transpose_a, transpose_b] = GetParam();
  for (const uint64_t seed : TestSeeds(30)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const auto size = [&] { return static_cast<int64_t>(random.Below(130)); };
    const int64_t rows = size();
    const int64_t columns = size();
    RandomProduct(random, transpose_a, transpose_b, rows, columns, size())
        .Check();
  }
}

TEST_P(GemmTransposeTest, Beta0DoesNotReadTheTarget) {
  const auto [transpose_a, transpose_b] = GetParam();
  Random random(2);
  for (const int64_t inner : {0, 1, 9, 64}) {
    Product product =
        RandomProduct(random, transpose_a, transpose_b, 7, 5, inner);
    product.beta = 0;
    product.c.assign(35, std::numeric_limits<float>::quiet_NaN());
    product.Check();
  }
}

TEST_P(GemmTransposeTest, OnlyTheTargetIsWritten) {
  const auto [transpose_a, transpose_b] = GetParam();
  Random random(3);
  const Product product =
      RandomProduct(random, transpose_a, transpose_b, 9, 11, 13);
  std::vector<float> memory(99 + 2, 123.0f);
  absl::c_copy(product.c, memory.begin() + 1);
  Gemm(transpose_a, transpose_b, 9, 11, 13, product.alpha, product.a.data(),
       product.b.data(), product.beta, memory.data() + 1);
  EXPECT_EQ(memory.front(), 123.0f);
  EXPECT_EQ(memory.back(), 123.0f);
}

INSTANTIATE_TEST_SUITE_P(
    Transposes, GemmTransposeTest,
    testing::Combine(testing::Values(Transpose::kNo, Transpose::kYes),
                     testing::Values(Transpose::kNo, Transpose::kYes)),
    [](const auto& info) {
      const auto name = [](Transpose t) {
        return std::string(t == Transpose::kYes ? "Flipped" : "Plain");
      };
      return name(std::get<0>(info.param)) + name(std::get<1>(info.param));
    });

TEST(GemmTest, RepeatedProductHasTheSameBits) {
  Random random(5);
  const Product product =
      RandomProduct(random, Transpose::kYes, Transpose::kNo, 150, 170, 400);
  for (const int threads : {1, 2}) {
    SetGemmThreads(threads);
    std::vector<float> first = product.c;
    Gemm(product.transpose_a, product.transpose_b, 150, 170, 400, 1.0f,
         product.a.data(), product.b.data(), 0.0f, first.data());
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::vector<float> again = product.c;
      Gemm(product.transpose_a, product.transpose_b, 150, 170, 400, 1.0f,
           product.a.data(), product.b.data(), 0.0f, again.data());
      ASSERT_EQ(first, again) << threads << " threads";
    }
  }
  SetGemmThreads(1);
}

}  // namespace
}  // namespace nereus
