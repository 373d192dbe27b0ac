#include "common/compute/vectors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Each loop that computes is written once, as a ...Loop function, and compiled
// once for each kind of CPU (Plain, Avx2, Avx512). The compiler inlines the
// loop into a function that may use that CPU's instructions, and makes vectors
// of that width. FindLoops asks the CPU once; the public functions at the end
// call the widest loops.

namespace nereus {
namespace {

// Forces a loop into its caller, where the caller's instruction set applies.
#define NEREUS_LOOP [[gnu::always_inline]] inline

NEREUS_LOOP void AddScaledLoop(const uint8_t* __restrict addend, int64_t count,
                               float factor, uint8_t* __restrict sum) {
  // Loads and stores go through memcpy, which compilers turn into unaligned
  // vector accesses.
  for (int64_t i = 0; i < count; ++i) {
    float a;
    float b;
    std::memcpy(&a, sum + 4 * i, sizeof(a));
    std::memcpy(&b, addend + 4 * i, sizeof(b));
    a = (a + b) * factor;
    std::memcpy(sum + 4 * i, &a, sizeof(a));
  }
}

// AddScaledLoop cannot call this loop with `sum` as `base`, because __restrict
// says that the arrays do not overlap.
NEREUS_LOOP void AddScaledToLoop(const uint8_t* __restrict base,
                                 const uint8_t* __restrict addend,
                                 int64_t count, float factor,
                                 uint8_t* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) {
    float a;
    float b;
    std::memcpy(&a, base + 4 * i, sizeof(a));
    std::memcpy(&b, addend + 4 * i, sizeof(b));
    a = (a + b) * factor;
    std::memcpy(sum + 4 * i, &a, sizeof(a));
  }
}

// Bits of the exponent; all are set in a NaN or an infinity.
constexpr uint32_t kExponent = 0x7f800000;

// Needs no branch for a value: the addition carries into the sign's place
// exactly if the value's exponent is at least `exponent`.
NEREUS_LOOP bool AllBelowLoop(const uint8_t* values, size_t count,
                              uint32_t exponent) {
  const uint32_t addend = (256 - exponent) << 23;
  uint32_t carries = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + 4 * i, sizeof(bits));
    carries |= (bits & kExponent) + addend;
  }
  return (carries & 0x80000000) == 0;
}

// Compares integers: the bits of magnitudes have the order of the magnitudes.
NEREUS_LOOP float LargestFiniteLoop(const float* values, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(values[i]) & 0x7fffffff;
    const int32_t finite =
        magnitude < static_cast<int32_t>(kExponent) ? magnitude : 0;
    largest = std::max(largest, finite);
  }
  return std::bit_cast<float>(largest);
}

NEREUS_LOOP void ScaleLoop(const float* values, int64_t count, float factor,
                           float* scaled) {
  for (int64_t i = 0; i < count; ++i) scaled[i] = values[i] * factor;
}

#undef NEREUS_LOOP

// Loops for every CPU.
struct Plain {
  static void AddScaled(const uint8_t* addend, int64_t count, float factor,
                        uint8_t* sum) {
    AddScaledLoop(addend, count, factor, sum);
  }
  static void AddScaledTo(const uint8_t* base, const uint8_t* addend,
                          int64_t count, float factor, uint8_t* sum) {
    AddScaledToLoop(base, addend, count, factor, sum);
  }
  static bool AllBelow(const uint8_t* values, size_t count, uint32_t exponent) {
    return AllBelowLoop(values, count, exponent);
  }
  static float LargestFinite(const float* values, int64_t count) {
    return LargestFiniteLoop(values, count);
  }
  static void Scale(const float* values, int64_t count, float factor,
                    float* scaled) {
    ScaleLoop(values, count, factor, scaled);
  }
  static void CopyPastCaches(const uint8_t* source, size_t bytes,
                             uint8_t* destination) {
#if defined(__x86_64__)  // Each x86-64 CPU has SSE2.
    for (size_t i = 0; i < bytes; i += 16) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(destination + i),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
    }
    _mm_sfence();
#else
    std::memcpy(destination, source, bytes);
#endif
  }
  static constexpr VectorLoops kLoops = {
      "plain",       AddScaled, AddScaledTo,   AllBelow,
      LargestFinite, Scale,     CopyPastCaches};
};

#if defined(__x86_64__)

#define NEREUS_AVX2 __attribute__((target("avx2")))
// Loops in vectors of 256 bits.
struct Avx2 {
  NEREUS_AVX2 static void AddScaled(const uint8_t* addend, int64_t count,
                                    float factor, uint8_t* sum) {
    AddScaledLoop(addend, count, factor, sum);
  }
  NEREUS_AVX2 static void AddScaledTo(const uint8_t* base,
                                      const uint8_t* addend, int64_t count,
                                      float factor, uint8_t* sum) {
    AddScaledToLoop(base, addend, count, factor, sum);
  }
  NEREUS_AVX2 static bool AllBelow(const uint8_t* values, size_t count,
                                   uint32_t exponent) {
    return AllBelowLoop(values, count, exponent);
  }
  NEREUS_AVX2 static float LargestFinite(const float* values, int64_t count) {
    return LargestFiniteLoop(values, count);
  }
  NEREUS_AVX2 static void Scale(const float* values, int64_t count,
                                float factor, float* scaled) {
    ScaleLoop(values, count, factor, scaled);
  }
  NEREUS_AVX2 static void CopyPastCaches(const uint8_t* source, size_t bytes,
                                         uint8_t* destination) {
    for (size_t i = 0; i < bytes; i += 32) {
      _mm256_stream_si256(
          reinterpret_cast<__m256i*>(destination + i),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i)));
    }
    _mm_sfence();
  }
  static constexpr VectorLoops kLoops = {
      "avx2",        AddScaled, AddScaledTo,   AllBelow,
      LargestFinite, Scale,     CopyPastCaches};
};
#undef NEREUS_AVX2

// Clang makes vectors as wide as the target allows; GCC must be told.
#if defined(__clang__)
#define NEREUS_AVX512 __attribute__((target("avx512f")))
#else
#define NEREUS_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#endif
// Loops in vectors of 512 bits.
struct Avx512 {
  NEREUS_AVX512 static void AddScaled(const uint8_t* addend, int64_t count,
                                      float factor, uint8_t* sum) {
    AddScaledLoop(addend, count, factor, sum);
  }
  NEREUS_AVX512 static void AddScaledTo(const uint8_t* base,
                                        const uint8_t* addend, int64_t count,
                                        float factor, uint8_t* sum) {
    AddScaledToLoop(base, addend, count, factor, sum);
  }
  NEREUS_AVX512 static bool AllBelow(const uint8_t* values, size_t count,
                                     uint32_t exponent) {
    return AllBelowLoop(values, count, exponent);
  }
  NEREUS_AVX512 static float LargestFinite(const float* values, int64_t count) {
    return LargestFiniteLoop(values, count);
  }
  NEREUS_AVX512 static void Scale(const float* values, int64_t count,
                                  float factor, float* scaled) {
    ScaleLoop(values, count, factor, scaled);
  }
  NEREUS_AVX512 static void CopyPastCaches(const uint8_t* source, size_t bytes,
                                           uint8_t* destination) {
    for (size_t i = 0; i < bytes; i += 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + i),
                          _mm512_loadu_si512(source + i));
    }
    _mm_sfence();
  }
  static constexpr VectorLoops kLoops = {
      "avx512",      AddScaled, AddScaledTo,   AllBelow,
      LargestFinite, Scale,     CopyPastCaches};
};
#undef NEREUS_AVX512

#endif

// Asks the CPU for its vectors, the widest first.
std::vector<VectorLoops> FindLoops() {
  std::vector<VectorLoops> loops;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) loops.push_back(Avx512::kLoops);
  if (__builtin_cpu_supports("avx2")) loops.push_back(Avx2::kLoops);
#endif
  loops.push_back(Plain::kLoops);
  return loops;
}

// Returns the loops that the public functions use.
const VectorLoops& Widest() {
  static const VectorLoops& loops = AvailableVectorLoops().front();
  return loops;
}

// Returns the index of the first value whose magnitude is not below
// 2^(exponent - 127); -1 if there is none.
int64_t FindFrom(const void* values, size_t count, uint32_t exponent) {
  constexpr size_t kBlock = 4096;
  const VectorLoops& loops = Widest();
  const auto* const bytes = static_cast<const uint8_t*>(values);
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t length = std::min(kBlock, count - start);
    if (loops.all_below(bytes + 4 * start, length, exponent)) continue;
    // Looks for the value in the block. There may be none any more: in shared
    // memory, another process may have changed the block since the check above.
    // The search then goes on with the next block.
    for (size_t i = start; i < start + length; ++i) {
      if (!loops.all_below(bytes + 4 * i, 1, exponent)) {
        return static_cast<int64_t>(i);
      }
    }
  }
  return -1;
}

}  // namespace

std::span<const VectorLoops> AvailableVectorLoops() {
  static const std::vector<VectorLoops>& loops =
      *new std::vector<VectorLoops>(FindLoops());
  return loops;
}

void AddScaled(const uint8_t* addend, int64_t count, float factor,
               uint8_t* sum) {
  Widest().add_scaled(addend, count, factor, sum);
}

void AddScaledTo(const uint8_t* base, const uint8_t* addend, int64_t count,
                 float factor, uint8_t* sum) {
  Widest().add_scaled_to(base, addend, count, factor, sum);
}

int64_t FindNotFinite(const void* values, size_t count) {
  return FindFrom(values, count, 255);
}

int64_t FindTooLarge(const void* values, size_t count) {
  return FindFrom(values, count, std::bit_cast<uint32_t>(kTooLarge) >> 23);
}

float LargestFinite(const float* values, int64_t count) {
  return Widest().largest_finite(values, count);
}

void ScaleTo(const float* values, int64_t count, float factor, float* scaled) {
  Widest().scale(values, count, factor, scaled);
}

void CopyBytes(const uint8_t* source, size_t bytes, uint8_t* destination) {
  // Least length, in bytes, of a copy past the caches: about the size of a
  // core's own cache.
  constexpr size_t kLong = 1024 * 1024;
  constexpr size_t kLine = 64;
  if (bytes < kLong) {
    std::memcpy(destination, source, bytes);
    return;
  }
  const size_t head =
      (kLine - reinterpret_cast<uintptr_t>(destination) % kLine) % kLine;
  const size_t body = (bytes - head) / kLine * kLine;
  std::memcpy(destination, source, head);
  Widest().copy_past_caches(source + head, body, destination + head);
  std::memcpy(destination + head + body, source + head + body,
              bytes - head - body);
}

}  // namespace nereus
