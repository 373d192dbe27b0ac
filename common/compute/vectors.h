#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nereus {

// What the data path does to float32 values in host memory, in the widest
// vectors that this CPU has. Values may start at any byte. Every width gives
// the same bits.

// sum[i] = (sum[i] + addend[i]) * factor.
void AddScaled(const uint8_t* addend, int64_t count, float factor,
               uint8_t* sum);

// The first of `count` values that is NaN or infinite; -1 if none is.
int64_t FindNotFinite(const void* values, size_t count);

// The largest magnitude of those values that are finite; 0 if none is.
float LargestFinite(const float* values, int64_t count);

// scaled[i] = values[i] * factor. `scaled` may be `values`.
void ScaleTo(const float* values, int64_t count, float factor, float* scaled);

// As memcpy; what is too long for the caches goes past them, so that the
// destination need not be read first.
void CopyBytes(const uint8_t* source, size_t bytes, uint8_t* destination);

// The same in vectors of one width: for tests.
struct VectorLoops {
  const char* name;
  void (*add_scaled)(const uint8_t* addend, int64_t count, float factor,
                     uint8_t* sum);
  bool (*all_finite)(const uint8_t* values, size_t count);
  float (*largest_finite)(const float* values, int64_t count);
  void (*scale)(const float* values, int64_t count, float factor,
                float* scaled);
  // REQUIRES: `bytes` is a multiple of 64, `destination` aligned to 64.
  void (*copy_past_caches)(const uint8_t* source, size_t bytes,
                           uint8_t* destination);
};

// Those that this CPU can run, the widest first.
std::span<const VectorLoops> AvailableVectorLoops();

}  // namespace nereus
