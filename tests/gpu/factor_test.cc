// Compares products of factors with sums on the CPU. cuBLAS multiplies on a
// GPU, or is emulated.

#include <cublas_v2.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/compute/factor_gradient_cuda.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/needs_gpu.h"

namespace nereus {
namespace {

struct FactorTest : NeedsGpu<testing::Test> {
  void SetUp() override {
    NeedsGpu::SetUp();
    if (IsSkipped()) return;
    NEREUS_CUDA(static_cast<cudaError_t>(cublasCreate(&handle)));
  }
  ~FactorTest() override {
    if (handle != nullptr) cublasDestroy(handle);
  }
  cublasHandle_t handle = nullptr;
};

struct Shape {
  int64_t rows;
  int64_t m;
  int64_t n;
};

const std::vector<Shape> kShapes = {{0, 3, 5},    {1, 1, 1},     {1, 7, 3},
                                    {32, 64, 48}, {33, 65, 127}, {128, 10, 300},
                                    {5, 300, 1}};

std::vector<float> Normal(int64_t count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Returns the largest error of an element, relative to the sum of the absolute
// products.
double Bound(int64_t rows) {
  return static_cast<double>(rows + 1) * std::ldexp(1.0, -24);
}

TEST_F(FactorTest, ProductsAreWithinTheBoundAndBiasesAreExact) {
  for (const Shape& shape : kShapes) {
    const auto [rows, m, n] = shape;
    const std::vector<float> output = Normal(rows * m, 1);
    const std::vector<float> input = Normal(rows * n, 2);
    const DeviceArray<float> on_output(output);
    const DeviceArray<float> on_input(input);
    const DeviceArray<float> gradient(std::vector<float>(m * n + m, -7.0f));
    const cublasStatus_t status = FactorGradientCuda(
        handle, rows, m, n, /*bias=*/true, 0.25f, on_output.data(),
        on_input.data(), gradient.data(), nullptr);
    ASSERT_EQ(status, CUBLAS_STATUS_SUCCESS);
    const std::vector<float> found = gradient.Read();
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t row = 0; row < rows; ++row) {
          const double product =
              double{output[row * m + i]} * double{input[row * n + j]};
          sum += product;
          magnitude += std::fabs(product);
        }
        EXPECT_LE(std::fabs(found[i * n + j] - 0.25 * sum),
                  0.25 * magnitude * Bound(rows))
            << rows << " rows, element " << i << ", " << j;
      }
      double bias = 0;
      for (int64_t row = 0; row < rows; ++row) bias += output[row * m + i];
      EXPECT_EQ(found[m * n + i], static_cast<float>(0.25 * bias));
    }
  }
}

TEST_F(FactorTest, WithoutABiasNothingIsWrittenBeyondTheProduct) {
  const DeviceArray<float> output(Normal(8 * 5, 3));
  const DeviceArray<float> input(Normal(8 * 6, 4));
  const DeviceArray<float> gradient(std::vector<float>(5 * 6, 0.0f));
  EXPECT_EQ(FactorGradientCuda(handle, 8, 5, 6,
                               /*bias=*/false, 1.0f, output.data(),
                               input.data(), gradient.data(), nullptr),
            CUBLAS_STATUS_SUCCESS);
  gradient.Read();
}

TEST_F(FactorTest, AnAddendIsAddedAndTheSumScaled) {
  constexpr int64_t kCount = 1000;
  const std::vector<float> addend = Normal(kCount, 7);
  const std::vector<float> before = Normal(kCount, 8);
  const DeviceArray<float> on_addend(addend);
  const DeviceArray<float> sum(before);
  NEREUS_CUDA(AddScaledCuda(on_addend.data(), kCount, 0.3f, sum.data(),
                            /*stream=*/nullptr));
  const std::vector<float> found = sum.Read();
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(found[i], (before[i] + addend[i]) * 0.3f) << i;
  }
}

TEST_F(FactorTest, EqualFactorsGiveEqualBits) {
  const Shape shape = {96, 130, 70};
  const DeviceArray<float> output(Normal(shape.rows * shape.m, 5));
  const DeviceArray<float> input(Normal(shape.rows * shape.n, 6));
  std::vector<float> before;
  for (int run = 0; run < 3; ++run) {
    const DeviceArray<float> gradient(
        std::vector<float>(shape.m * shape.n, 0.0f));
    ASSERT_EQ(FactorGradientCuda(handle, shape.rows, shape.m, shape.n,
                                 /*bias=*/false, 1.0f, output.data(),
                                 input.data(), gradient.data(), nullptr),
              CUBLAS_STATUS_SUCCESS);
    const std::vector<float> found = gradient.Read();
    EXPECT_TRUE(run == 0 || found == before);
    before = found;
  }
}

}  // namespace
}  // namespace nereus
