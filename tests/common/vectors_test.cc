// Loops over floats with vector instructions. Each instruction set must give
// the same bits as the scalar loop, at each length and address.

#include "common/compute/vectors.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
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

}  // namespace
}  // namespace nereus
