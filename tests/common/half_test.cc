// Conversions between float32 and the 16-bit formats. The reference follows the
// definition of the formats; all 16-bit values and their neighbours are
// compared with it.

#include "common/compute/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/base/random.h"

namespace nereus {
namespace {

constexpr int kValues = 1 << 16;

// An independent reference by the definition: it picks the nearer of the two
// neighbours among all 16-bit floats, and the even neighbour in a tie.

// Returns the value of 16 bits with the given sizes of exponent and mantissa.
double Meaning(uint32_t magnitude, int mantissa_bits, int bias) {
  const auto exponent = static_cast<int>(magnitude >> mantissa_bits);
  const double mantissa = magnitude & ((1u << mantissa_bits) - 1);
  const double scale = std::exp2(-mantissa_bits);
  if (exponent == 0) return mantissa * scale * std::exp2(1 - bias);
  return (1 + mantissa * scale) * std::exp2(exponent - bias);
}

struct Format {
  int mantissa_bits;
  int bias;
  uint32_t infinity;

  uint16_t Nearest(float value) const {
    const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
    const double wanted = std::fabs(static_cast<double>(value));
    if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
    uint32_t low = 0;  // The largest float that is not above the value.
    uint32_t high = infinity;
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (Meaning(middle, mantissa_bits, bias) <= wanted ? low : high) = middle;
    }
    // Beyond the largest number, infinity has the place of the next number.
    const double below = wanted - Meaning(low, mantissa_bits, bias);
    const double above = Meaning(low + 1, mantissa_bits, bias) - wanted;
    const bool up = above < below || (above == below && low % 2 == 1);
    return static_cast<uint16_t>(sign | (low + (up ? 1 : 0)));
  }
};

constexpr Format kBfloat16 = {7, 127, 0x7f80};
constexpr Format kFloat16 = {10, 15, 0x7c00};

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }

// Returns each 16-bit value, the midpoint to the next value, and the floats on
// both sides of each of these; then floats of random bits.
std::vector<float> HardCases(float (*from)(uint16_t)) {
  std::vector<float> cases;
  const auto add = [&](uint32_t bits) {
    for (const uint32_t each : {bits - 1, bits, bits + 1}) {
      cases.push_back(FloatOf(each));
    }
  };
  for (int i = 0; i < kValues; ++i) {
    const float value = from(static_cast<uint16_t>(i));
    add(BitsOf(value));
    if (i % 0x8000 + 1 == 0x8000) continue;
    const float next = from(static_cast<uint16_t>(i + 1));
    add(BitsOf(static_cast<float>((static_cast<double>(value) + next) / 2)));
  }
  Random random(7);
  for (int i = 0; i < 300000; ++i) {
    cases.push_back(FloatOf(static_cast<uint32_t>(random.Below(1ull << 32))));
  }
  return cases;
}

std::vector<uint16_t> AllHalves() {
  std::vector<uint16_t> halves;
  for (int i = 0; i < kValues; ++i) halves.push_back(static_cast<uint16_t>(i));
  return halves;
}

TEST(HalfTest, EachBfloat16DecodesToItsDefinition) {
  for (int i = 0; i < kValues; ++i) {
    const float value = scalar::FromBfloat16(static_cast<uint16_t>(i));
    ASSERT_EQ(BitsOf(value), static_cast<uint32_t>(i) << 16);
  }
}

TEST(HalfTest, EachFloat16DecodesToItsDefinition) {
  for (uint32_t i = 0; i < kValues; ++i) {
    const float value = scalar::FromFloat16(static_cast<uint16_t>(i));
    const uint32_t magnitude = i & 0x7fff;
    ASSERT_EQ(std::signbit(value), i >= 0x8000) << i;
    if (magnitude > 0x7c00) {
      ASSERT_TRUE(std::isnan(value)) << i;
      // The NaN is quiet and keeps its payload.
      ASSERT_EQ(BitsOf(value) & 0x7fffff, 0x400000 | ((i & 0x3ff) << 13)) << i;
    } else if (magnitude == 0x7c00) {
      ASSERT_TRUE(std::isinf(value)) << i;
    } else {
      ASSERT_EQ(std::fabs(value), Meaning(magnitude, 10, 15)) << i;
    }
  }
}

TEST(HalfTest, RoundingIsToTheNearestAndTiesToEven) {
  for (const float value : HardCases(scalar::FromBfloat16)) {
    if (std::isnan(value)) continue;
    ASSERT_EQ(scalar::ToBfloat16(value), kBfloat16.Nearest(value)) << value;
  }
  for (const float value : HardCases(scalar::FromFloat16)) {
    if (std::isnan(value)) continue;
    ASSERT_EQ(scalar::ToFloat16(value), kFloat16.Nearest(value)) << value;
  }
}

TEST(HalfTest, NaNsStayNaNs) {
  for (uint32_t mantissa = 1; mantissa < 0x800000; mantissa += 12345) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float nan = FloatOf(sign | 0x7f800000 | mantissa);
      EXPECT_EQ(scalar::ToBfloat16(nan) & 0x7fc0, 0x7fc0);
      EXPECT_EQ(scalar::ToFloat16(nan) & 0x7e00, 0x7e00);
      EXPECT_EQ(scalar::ToBfloat16(nan) >> 15, sign >> 31);
      EXPECT_EQ(scalar::ToFloat16(nan) >> 15, sign >> 31);
    }
  }
}

// The cases above have no value between the largest number and infinity.
TEST(HalfTest, LargeValuesRoundToTheLargestNumberOrInfinity) {
  EXPECT_EQ(scalar::ToFloat16(65519.996f), 0x7bff);
  EXPECT_EQ(scalar::ToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(scalar::ToFloat16(-1e30f), 0xfc00);
  EXPECT_EQ(scalar::ToBfloat16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(HalfTest, VectorCodeGivesTheBitsOfScalarCode) {
  std::vector<float> cases = HardCases(scalar::FromFloat16);
  const std::vector<float> more = HardCases(scalar::FromBfloat16);
  cases.insert(cases.end(), more.begin(), more.end());
  const auto count = std::ssize(cases);
  std::vector<uint16_t> bfloat16(count);
  std::vector<uint16_t> float16(count);
  ToBfloat16(cases.data(), count, bfloat16.data());
  ToFloat16(cases.data(), count, float16.data());
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(bfloat16[i], scalar::ToBfloat16(cases[i])) << BitsOf(cases[i]);
    ASSERT_EQ(float16[i], scalar::ToFloat16(cases[i])) << BitsOf(cases[i]);
  }
  const std::vector<uint16_t> halves = AllHalves();
  std::vector<float> from_bfloat16(kValues);
  std::vector<float> from_float16(kValues);
  FromBfloat16(halves.data(), kValues, from_bfloat16.data());
  FromFloat16(halves.data(), kValues, from_float16.data());
  for (int i = 0; i < kValues; ++i) {
    ASSERT_EQ(BitsOf(from_bfloat16[i]),
              BitsOf(scalar::FromBfloat16(halves[i])));
    ASSERT_EQ(BitsOf(from_float16[i]), BitsOf(scalar::FromFloat16(halves[i])));
  }
}

TEST(HalfTest, EachLengthAndAlignmentWorks) {
  for (int64_t start = 0; start < 3; ++start) {
    for (int64_t count = 0; count < 40; ++count) {
      std::vector<float> values(50);
      for (int i = 0; i < 50; ++i) values[i] = static_cast<float>(i) * 0.37f;
      std::vector<uint16_t> halves(50, 0xabcd);
      ToFloat16(values.data() + start, count, halves.data() + start);
      std::vector<float> back(50, 1.0f);
      FromFloat16(halves.data() + start, count, back.data() + start);
      for (int64_t i = 0; i < 50; ++i) {
        const bool inside = i >= start && i < start + count;
        const uint16_t half = scalar::ToFloat16(values[i]);
        ASSERT_EQ(halves[i], inside ? half : 0xabcd);
        ASSERT_EQ(back[i], inside ? scalar::FromFloat16(half) : 1.0f);
      }
      ToBfloat16(values.data() + start, count, halves.data() + start);
      FromBfloat16(halves.data() + start, count, back.data() + start);
      for (int64_t i = start; i < start + count; ++i) {
        ASSERT_EQ(back[i], scalar::FromBfloat16(scalar::ToBfloat16(values[i])));
      }
    }
  }
}

}  // namespace
}  // namespace nereus
