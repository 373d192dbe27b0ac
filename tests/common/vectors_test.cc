// Loops over floats with vector instructions. Each instruction set must give
// the same bits as the scalar loop, at each length and address. Then come the
// conversions between float32 and the 16-bit formats. Their reference follows
// the definition of the formats; all 16-bit values and their neighbours are
// compared with it.

#include "common/compute/vectors.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/compute/half.h"

namespace nereus {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const uint8_t* BytesOf(const std::vector<float>& values) {
  return reinterpret_cast<const uint8_t*>(values.data());
}

TEST(VectorsTest, FiniteValuesAreNotFound) {
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

TEST(VectorsTest, FirstNonFiniteValueIsFoundAtEachPlace) {
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

TEST(VectorsTest, FirstValueThatIsTooLargeIsFoundAtEachPlace) {
  const float below = std::nextafter(kTooLarge, 0.0f);
  for (const float wrong : {kTooLarge, -kTooLarge, 3e38f, kInfinity, -kInfinity,
                            std::nanf(""), -std::nanf("")}) {
    for (const size_t count : {1, 7, 8, 4095, 4096, 4097, 9000}) {
      std::vector<float> values(count, below);
      values[0] = -below;
      EXPECT_EQ(FindTooLarge(values.data(), count), -1);
      values.back() = wrong;
      values[count / 2] = wrong;
      EXPECT_EQ(FindTooLarge(values.data(), count),
                static_cast<int64_t>(count / 2));
    }
  }
}

TEST(VectorsTest, ValuesMayStartAtAnyByte) {
  std::vector<uint8_t> bytes(4 * 5000 + 1);
  EXPECT_EQ(FindNotFinite(bytes.data() + 1, 5000), -1);
  std::memcpy(bytes.data() + 1 + 4 * 4321, &kInfinity, sizeof(kInfinity));
  EXPECT_EQ(FindNotFinite(bytes.data() + 1, 5000), 4321);
}

// The memory belongs to another process too, which may change the values
// between two reads.
TEST(VectorsTest, ConcurrentChangesCauseNoReadBeyondTheValues) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "it is a race, and not ours to end";
#endif
  constexpr size_t kBytes = 4 * 4096;
  auto* const memory =
      static_cast<uint8_t*>(mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + kBytes, kBytes, PROT_NONE), 0);
  std::atomic<bool> over{false};
  std::thread other([&] {
    auto* const last = reinterpret_cast<volatile float*>(memory + kBytes - 4);
    while (!over) {
      *last = kInfinity;
      *last = 0.0f;
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    const int64_t found = FindNotFinite(memory, 4096);
    EXPECT_TRUE(found == -1 || found == 4095) << found;
  }
  over = true;
  other.join();
  munmap(memory, 2 * kBytes);
}

TEST(VectorsTest, EachWidthFindsNonFiniteValues) {
  for (const VectorLoops& loops : AvailableVectorLoops()) {
    for (const size_t count : {1, 2, 15, 16, 17, 31, 33, 64, 1000}) {
      std::vector<float> values(count, -std::numeric_limits<float>::max());
      EXPECT_TRUE(loops.all_below(BytesOf(values), count, 255)) << loops.name;
      for (size_t at = 0; at < count; ++at) {
        for (const float wrong : {kInfinity, -std::nanf("")}) {
          const float before = std::exchange(values[at], wrong);
          EXPECT_FALSE(loops.all_below(BytesOf(values), count, 255))
              << loops.name << ", " << at << " of " << count;
          values[at] = before;
        }
      }
    }
  }
}

// GCC can compile the loops without vectors, and no result would change. On
// x86-64 a 512-bit instruction begins with the byte 0x62, and a 256-bit one
// with 0xc4 or 0xc5. Sanitizers check each value, so that loops have no
// vectors.
#if defined(__x86_64__) && !defined(_GLIBCXX_ASSERTIONS)
TEST(VectorsTest, WideLoopsHaveWideInstructions) {
  for (const VectorLoops& loops : AvailableVectorLoops()) {
    const std::string name = loops.name;
    if (name == "plain") continue;
    const std::string code(reinterpret_cast<const char*>(loops.all_below), 100);
    const std::string prefixes = name == "avx512" ? "\x62" : "\xc4\xc5";
    EXPECT_NE(code.find_first_of(prefixes), std::string::npos) << name;
  }
}
#endif

// Returns values with sums and products that need rounding.
std::vector<float> Thirds(size_t count, int seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(i * 7 + seed) / 3.0f;
  }
  return values;
}

TEST(VectorsTest, EachWidthAddsToTheSameBitsAtEachAddress) {
  for (const VectorLoops& loops : AvailableVectorLoops()) {
    for (const size_t count : {0, 1, 3, 8, 15, 16, 17, 63, 64, 65, 1001}) {
      for (const size_t shift : {0, 1, 4, 6}) {
        const std::vector<float> a = Thirds(count, 1);
        const std::vector<float> b = Thirds(count, 5);
        std::vector<uint8_t> sum(4 * count + shift + 1, 0xab);
        std::vector<uint8_t> addend(4 * count + shift);
        if (count > 0) {
          std::memcpy(sum.data() + shift, a.data(), 4 * count);
          std::memcpy(addend.data() + shift, b.data(), 4 * count);
        }
        loops.add_scaled(addend.data() + shift, static_cast<int64_t>(count),
                         1.0f / 3.0f, sum.data() + shift);
        EXPECT_EQ(sum.back(), 0xab);
        std::vector<uint8_t> base(4 * count + shift);
        if (count > 0) std::memcpy(base.data() + shift, a.data(), 4 * count);
        std::vector<uint8_t> apart(4 * count + shift + 1, 0xab);
        loops.add_scaled_to(base.data() + shift, addend.data() + shift,
                            static_cast<int64_t>(count), 1.0f / 3.0f,
                            apart.data() + shift);
        EXPECT_EQ(apart.back(), 0xab);
        ASSERT_TRUE(std::equal(apart.begin() + shift, apart.end(),
                               sum.begin() + shift));
        for (size_t i = 0; i < count; ++i) {
          float got;
          std::memcpy(&got, sum.data() + shift + 4 * i, 4);
          ASSERT_EQ(got, (a[i] + b[i]) * (1.0f / 3.0f))
              << loops.name << ", " << i << " of " << count << " at " << shift;
        }
      }
    }
  }
}

TEST(VectorsTest, EachWidthFindsTheLargestFiniteMagnitude) {
  for (const VectorLoops& loops : AvailableVectorLoops()) {
    for (int64_t count = 0; count < 70; ++count) {
      std::vector<float> values(count);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>(i % 7) - 3.0f;
      }
      if (count > 5) values[5] = -kInfinity;
      if (count > 40) values[40] = std::numeric_limits<float>::quiet_NaN();
      const float before = count > 0 ? 3.0f : 0.0f;
      EXPECT_EQ(loops.largest_finite(values.data(), count), before);
      for (int64_t at = 0; at < count; ++at) {
        std::vector<float> with = values;
        with[at] = -1e30f;
        EXPECT_EQ(loops.largest_finite(with.data(), count), 1e30f)
            << loops.name << " of " << count << " at " << at;
      }
    }
  }
}

TEST(VectorsTest, EachWidthScalesToTheSameBits) {
  for (const VectorLoops& loops : AvailableVectorLoops()) {
    for (int64_t count = 0; count < 70; ++count) {
      std::vector<float> values(count + 1, 7.0f);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = 0.1f * static_cast<float>(i);
      }
      std::vector<float> scaled(count + 1, 7.0f);
      loops.scale(values.data(), count, 0.3f, scaled.data());
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(scaled[i], values[i] * 0.3f) << loops.name;
      }
      EXPECT_EQ(scaled[count], 7.0f) << loops.name;
    }
  }
}

TEST(VectorsTest, EachWidthCopiesPastTheCaches) {
  for (const VectorLoops& loops : AvailableVectorLoops()) {
    for (const size_t bytes : {0, 64, 128, 6400}) {
      std::vector<uint8_t> source(bytes + 1);
      std::iota(source.begin(), source.end(), uint8_t{1});
      alignas(64) uint8_t destination[6400 + 1] = {};
      loops.copy_past_caches(source.data() + 1, bytes, destination);
      EXPECT_EQ(std::memcmp(source.data() + 1, destination, bytes), 0)
          << loops.name << ", " << bytes;
      EXPECT_EQ(destination[bytes], 0) << loops.name << ", " << bytes;
    }
  }
}

TEST(VectorsTest, LongCopiesMayBeginAndEndAnywhere) {
  constexpr size_t kLong = 1024 * 1024;
  for (const size_t bytes : {size_t{0}, size_t{5}, kLong, kLong + 77}) {
    for (const size_t shift : {0, 1, 63}) {
      std::vector<uint8_t> source(bytes + 3);
      for (size_t i = 0; i < source.size(); ++i) {
        source[i] = static_cast<uint8_t>(i * 7 + i / 251);
      }
      std::vector<uint8_t> destination(bytes + shift + 1, 0xab);
      CopyBytes(source.data() + 3, bytes, destination.data() + shift);
      EXPECT_TRUE(std::equal(source.begin() + 3, source.end(),
                             destination.begin() + static_cast<long>(shift)))
          << bytes << " to " << shift;
      EXPECT_EQ(destination.back(), 0xab);
    }
  }
}

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
