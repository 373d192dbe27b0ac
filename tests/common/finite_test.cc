#include "common/compute/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace nereus {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(FiniteTest, FiniteValuesAreNotFound) {
  EXPECT_EQ(FindNotFinite(nullptr, 0), -1);
  const std::vector<float> values = {0.0f,
                                     -0.0f,
                                     1.0f,
                                     -1e30f,
                                     std::numeric_limits<float>::max(),
                                     std::numeric_limits<float>::lowest(),
                                     std::numeric_limits<float>::min(),
                                     std::numeric_limits<float>::denorm_min()};
  EXPECT_EQ(FindNotFinite(values.data(), values.size()), -1);
}

TEST(FiniteTest, TheFirstThatIsNotFiniteIsFoundWhereverItIs) {
  for (const float wrong :
       {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    for (const size_t count : {1, 7, 8, 4095, 4096, 4097, 9000}) {
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        std::vector<float> values(count, 3.5f);
        values[at] = wrong;
        EXPECT_EQ(FindNotFinite(values.data(), count),
                  static_cast<int64_t>(at));
        values.back() = wrong;
        EXPECT_EQ(FindNotFinite(values.data(), count),
                  static_cast<int64_t>(at));
      }
    }
  }
}

}  // namespace
}  // namespace nereus
