#include "common/compute/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr double kUnit = 0x1.0p-24;  // Relative error of one float32 rounding.

std::vector<float> RandomFloats(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(random.Uniform() * 2 - 1);
  }
  return values;
}

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
