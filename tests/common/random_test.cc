#include "common/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace nereus {
namespace {

// The first numbers of the reference implementation, splitmix64.c by Vigna.
TEST(RandomTest, NumbersAreThoseOfSplitMix64) {
  Random zero(0);
  EXPECT_EQ(zero.Next(), 0xe220a8397b1dcdaf);
  EXPECT_EQ(zero.Next(), 0x6e789e6aa1b965f4);
  EXPECT_EQ(zero.Next(), 0x06c45d188009454f);
  Random other(1234567);
  EXPECT_EQ(other.Next(), 6457827717110365317u);
  EXPECT_EQ(other.Next(), 3203168211198807973u);
  EXPECT_EQ(other.Next(), 9817491932198370423u);
}

TEST(RandomTest, BelowStaysBelowAndReachesEachValue) {
  Random random(3);
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7000; ++i) {
    const uint64_t value = random.Below(7);
    ASSERT_LT(value, 7u);
    ++seen[value];
  }
  // Each value is expected 1000 times. The deviation is sqrt(7000 * 1/7 * 6/7)
  // = 29; the bound is 6 deviations.
  for (int count : seen) EXPECT_NEAR(count, 1000, 180);
}

TEST(RandomTest, BelowTakesTheExtremeBounds) {
  Random random(4);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(random.Below(1), 0u);
    const uint64_t max = std::numeric_limits<uint64_t>::max();
    EXPECT_LT(random.Below(max), max);
  }
}

TEST(RandomTest, UniformIsAMultipleOf2ToTheMinus53In0To1) {
  Random random(5);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.Uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    const double steps = value * 0x1.0p53;
    ASSERT_EQ(steps, std::floor(steps));
    sum += value;
  }
  // The mean of 10000 has a deviation of sqrt(1/12/10000) = 0.0029; the bound
  // is 6 deviations.
  EXPECT_NEAR(sum / 10000, 0.5, 0.018);
}

TEST(RandomTest, ChanceIsCertainAt0AndAt1) {
  Random random(6);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(random.Chance(0.0));
    EXPECT_TRUE(random.Chance(1.0));
  }
}

}  // namespace
}  // namespace nereus
