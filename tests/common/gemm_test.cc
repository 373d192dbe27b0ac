#include "common/compute/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr double kUnit = 0x1.0p-24;  // One rounding of a float32, relative.

std::vector<float> RandomFloats(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(random.Uniform() * 2 - 1);
  }
  return values;
}

// One product, and what plain loops in double make of it.
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

  // An element of the sum passes one product, at most `inner` additions in
  // whatever order, the factor alpha, the sum with beta * c, and that product:
  // each off by 2^-24 of the absolute values' sum at most, and 1 % for their
  // products.
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

TEST_P(GemmTransposeTest, IsTheProductForAllSmallSizes) {
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

TEST_P(GemmTransposeTest, IsTheProductForRandomSizes) {
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

TEST_P(GemmTransposeTest, WithBeta0TheTargetIsNotRead) {
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

TEST_P(GemmTransposeTest, NothingBesideTheTargetIsWritten) {
  const auto [transpose_a, transpose_b] = GetParam();
  Random random(3);
  const Product product =
      RandomProduct(random, transpose_a, transpose_b, 9, 11, 13);
  std::vector<float> memory(99 + 2, 123.0f);
  std::copy(product.c.begin(), product.c.end(), memory.begin() + 1);
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

// Where the factors lie in memory must not matter: peers hold theirs elsewhere.
TEST(GemmTest, AlignmentDoesNotChangeTheBits) {
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

TEST(GemmTest, RunningItAgainGivesTheSameBits) {
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

// 2 rows; m = 2, n = 3. All exact.
TEST(FactorGradientTest, IsTheProductAndTheColumnSumsByHand) {
  const float output_gradient[] = {1, 2,  //
                                   3, 4};
  const float input[] = {1, 0, 2,  //
                         0, 1, 1};
  const std::vector<float> weights = {0.5f, 1.5f, 2.5f,  //
                                      1.0f, 2.0f, 4.0f};
  std::vector<float> gradient(8, 99.0f);
  FactorGradient(2, 2, 3, true, 0.5f, output_gradient, input, gradient.data());
  std::vector<float> expected = weights;
  expected.insert(expected.end(), {2.0f, 3.0f});
  EXPECT_EQ(gradient, expected);

  gradient.assign(8, 99.0f);
  FactorGradient(2, 2, 3, false, 0.5f, output_gradient, input, gradient.data());
  expected = weights;
  expected.insert(expected.end(), {99.0f, 99.0f});  // No bias: not touched.
  EXPECT_EQ(gradient, expected);
}

TEST(FactorGradientTest, NoRowsGiveNoGradient) {
  std::vector<float> gradient(8, std::numeric_limits<float>::quiet_NaN());
  const float nothing = 0.0f;
  FactorGradient(0, 2, 3, true, 1.0f, &nothing, &nothing, gradient.data());
  EXPECT_EQ(gradient, std::vector<float>(8, 0.0f));
}

// In float32 these sums would lose the small values altogether.
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

TEST(FactorGradientTest, FollowsPlainLoops) {
  for (const uint64_t seed : TestSeeds(30)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const auto rows = static_cast<int64_t>(1 + random.Below(70));
    const auto m = static_cast<int64_t>(1 + random.Below(40));
    const auto n = static_cast<int64_t>(1 + random.Below(40));
    Product product =
        RandomProduct(random, Transpose::kYes, Transpose::kNo, m, n, rows);
    product.alpha = 1.0f / 3;
    product.beta = 0.0f;
    std::vector<float> gradient(m * n + m);
    FactorGradient(rows, m, n, true, product.alpha, product.a.data(),
                   product.b.data(), gradient.data());
    product.ExpectEqualTo(gradient);
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t row = 0; row < rows; ++row) sum += product.a[row * m + i];
      // Summed in the same order, in double: one rounding, to float.
      const double expected = product.alpha * sum;
      ASSERT_NEAR(gradient[m * n + i], expected, kUnit * std::abs(expected));
    }
  }
}

}  // namespace
}  // namespace nereus
