#include "common/compute/half.h"

#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Conversions in two forms. namespace scalar has the reference, without
// vectors. Avx<...> converts eight values at a time with AVX2 and F16C, and
// leaves the last values, fewer than eight, to the reference. A process chooses
// one form, at its first conversion. Both forms give the same bits, NaNs
// included: tests compare them over all 2^16 values of 16 bits and over many
// float32 values.

namespace nereus {
namespace scalar {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;

// Limits of fp16, as the bits of a float32: the smallest normal number, 2^-14;
// half of the smallest subnormal number, 2^-25; and 2^16, which becomes
// infinite.
constexpr uint32_t kFloat16Normal = 0x38800000;
constexpr uint32_t kFloat16Zero = 0x33000000;
constexpr uint32_t kFloat16TooLarge = 0x47800000;

// Returns value >> shift, rounded to nearest, ties to even. 1 <= shift <= 31.
uint32_t RoundingShift(uint32_t value, int shift) {
  const uint32_t odd = (value >> shift) & 1;
  const uint32_t below_half = (uint32_t{1} << (shift - 1)) - 1;
  return (value + below_half + odd) >> shift;
}

}  // namespace

uint16_t ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & kMagnitude) > kInfinity;
  // A NaN keeps its upper bits and becomes quiet. It is not rounded, because
  // the carry could change the exponent or the sign.
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40
                                   : RoundingShift(bits, 16));
}

float FromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t ToFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & kMagnitude;
  uint32_t rounded = 0;
  if (magnitude > kInfinity) {
    rounded = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= kFloat16TooLarge) {
    rounded = 0x7c00;
  } else if (magnitude >= kFloat16Normal) {
    // The biases of the two exponents differ by 112. Rounding up can carry into
    // the exponent, and even make it that of infinity: the result is then right
    // too.
    rounded = RoundingShift(magnitude, 13) - (uint32_t{112} << 10);
  } else if (magnitude > kFloat16Zero) {
    // A subnormal half: the smaller the exponent, the further the mantissa is
    // shifted.
    const auto exponent = static_cast<int>(magnitude >> 23);
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    rounded = RoundingShift(mantissa, 126 - exponent);
  }
  return static_cast<uint16_t>(sign | rounded);
}

float FromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  uint32_t magnitude = 0;
  if (exponent == 31) {
    const uint32_t quiet = mantissa == 0 ? 0 : 0x400000;
    magnitude = kInfinity | quiet | (mantissa << 13);
  } else if (exponent == 0) {
    magnitude =
        std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  } else {
    magnitude = ((exponent + 112) << 23) | (mantissa << 13);
  }
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace scalar

namespace {

// Loops for one kind of 16-bit float on one kind of CPU.
struct Kernels {
  void (*to)(const float*, int64_t, uint16_t*);    // Converts from float32.
  void (*from)(const uint16_t*, int64_t, float*);  // Converts to float32.
};

// Loops that convert one value after the other.
template <uint16_t (*kTo)(float), float (*kFrom)(uint16_t)>
struct Plain {
  static void To(const float* source, int64_t count, uint16_t* destination) {
    for (int64_t i = 0; i < count; ++i) destination[i] = kTo(source[i]);
  }
  static void From(const uint16_t* source, int64_t count, float* destination) {
    for (int64_t i = 0; i < count; ++i) destination[i] = kFrom(source[i]);
  }
  static constexpr Kernels kKernels = {To, From};
};
using PlainBfloat16 = Plain<scalar::ToBfloat16, scalar::FromBfloat16>;
using PlainFloat16 = Plain<scalar::ToFloat16, scalar::FromFloat16>;

#if defined(__x86_64__)

// Number of values in a vector.
constexpr int64_t kLanes = 8;

#define NEREUS_AVX2 __attribute__((target("avx2,f16c")))

// Conversions of bfloat16. AVX2 has no instructions for them, so these use
// integers, as the reference does.
struct AvxBfloat16 {
  NEREUS_AVX2 static __m256 Load(const uint16_t* source) {
    const __m128i half =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  NEREUS_AVX2 static void Store(__m256 values, uint16_t* destination) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)),
                         odd),
        16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan =
        _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(words),
                                            _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination), packed);
  }
  using Rest = PlainBfloat16;
};

// Conversions of fp16, by F16C's instructions.
struct AvxFloat16 {
  NEREUS_AVX2 static __m256 Load(const uint16_t* source) {
    return _mm256_cvtph_ps(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  NEREUS_AVX2 static void Store(__m256 values, uint16_t* destination) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
  using Rest = PlainFloat16;
};

// Loops over vectors of one type.
template <typename Type>
struct Avx {
  using Rest = typename Type::Rest;
  NEREUS_AVX2 static void To(const float* source, int64_t count,
                             uint16_t* destination) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Type::Store(_mm256_loadu_ps(source + i), destination + i);
    }
    Rest::To(source + i, count - i, destination + i);
  }
  NEREUS_AVX2 static void From(const uint16_t* source, int64_t count,
                               float* destination) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      _mm256_storeu_ps(destination + i, Type::Load(source + i));
    }
    Rest::From(source + i, count - i, destination + i);
  }
  static constexpr Kernels kKernels = {To, From};
};

#undef NEREUS_AVX2

// True if the CPU has AVX2 and F16C. Tests only AVX2: every CPU with AVX2 has
// F16C, which is older, and not all compilers can ask for F16C.
bool HasVectors() { return __builtin_cpu_supports("avx2"); }

const Kernels& Bfloat16Kernels() {
  static const Kernels kernels =
      HasVectors() ? Avx<AvxBfloat16>::kKernels : PlainBfloat16::kKernels;
  return kernels;
}

const Kernels& Float16Kernels() {
  static const Kernels kernels =
      HasVectors() ? Avx<AvxFloat16>::kKernels : PlainFloat16::kKernels;
  return kernels;
}

#else

const Kernels& Bfloat16Kernels() { return PlainBfloat16::kKernels; }
const Kernels& Float16Kernels() { return PlainFloat16::kKernels; }

#endif

}  // namespace

void ToBfloat16(const float* source, int64_t count, uint16_t* destination) {
  Bfloat16Kernels().to(source, count, destination);
}
void FromBfloat16(const uint16_t* source, int64_t count, float* destination) {
  Bfloat16Kernels().from(source, count, destination);
}
void ToFloat16(const float* source, int64_t count, uint16_t* destination) {
  Float16Kernels().to(source, count, destination);
}
void FromFloat16(const uint16_t* source, int64_t count, float* destination) {
  Float16Kernels().from(source, count, destination);
}

}  // namespace nereus
