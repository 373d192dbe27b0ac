#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/compute/update_rules.h"

namespace nereus {

// Loops over float32 values in host memory, in the widest vectors that this CPU
// has. Pointers to uint8_t or void need not be aligned. Vectors of every width
// give the same bits, so members with different CPUs may share a job. Any
// thread may call these functions.

// Computes sum[i] = (sum[i] + addend[i]) * factor.
void AddScaled(const uint8_t* addend, int64_t count, float factor,
               uint8_t* sum);

// Computes sum[i] = (base[i] + addend[i]) * factor. The arrays must not
// overlap.
void AddScaledTo(const uint8_t* base, const uint8_t* addend, int64_t count,
                 float factor, uint8_t* sum);

// Returns the index of the first of `count` values that is NaN or infinite; -1
// if there is none.
int64_t FindNotFinite(const void* values, size_t count);

// Returns the index of the first of `count` values that is NaN or has a
// magnitude of kTooLarge or more; -1 if there is none.
int64_t FindTooLarge(const void* values, size_t count);

// Returns the largest magnitude among finite values; 0 if none is finite.
float LargestFinite(const float* values, int64_t count);

// Computes scaled[i] = values[i] * factor. `scaled` may be `values`.
void ScaleTo(const float* values, int64_t count, float factor, float* scaled);

// Copies as memcpy does. A copy of 1 MiB or more writes past the CPU's caches,
// straight to memory, so that the CPU need not read the destination first.
void CopyBytes(const uint8_t* source, size_t bytes, uint8_t* destination);

// The functions above, in vectors of one width. Tests compare the widths with
// each other.
struct VectorLoops {
  const char* name;  // "plain", "avx2", "avx512".
  // Does what AddScaled does.
  void (*add_scaled)(const uint8_t* addend, int64_t count, float factor,
                     uint8_t* sum);
  // Does what AddScaledTo does.
  void (*add_scaled_to)(const uint8_t* base, const uint8_t* addend,
                        int64_t count, float factor, uint8_t* sum);
  // Returns true if all values have a magnitude below 2^(exponent - 127). With
  // 255, as in the bits of an infinity: if all values are finite. REQUIRES:
  // 128 <= exponent <= 255.
  bool (*all_below)(const uint8_t* values, size_t count, uint32_t exponent);
  // Does what LargestFinite does.
  float (*largest_finite)(const float* values, int64_t count);
  // Does what ScaleTo does.
  void (*scale)(const float* values, int64_t count, float factor,
                float* scaled);
  // Copies past the caches. REQUIRES: `bytes` is a multiple of 64,
  // `destination` is aligned to 64.
  void (*copy_past_caches)(const uint8_t* source, size_t bytes,
                           uint8_t* destination);
};

// Returns the loops that this CPU can run, the widest first.
std::span<const VectorLoops> AvailableVectorLoops();

}  // namespace nereus
