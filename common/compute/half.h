#pragma once

#include <cstdint>

namespace nereus {

// Floats of 16 bits, as they go over the wire: bfloat16 (8 bits of exponent, 7
// of mantissa) and IEEE 754 binary16, "fp16" (5 and 10). To 16 bits: rounded to
// nearest, ties to even; what is too large becomes infinite; subnormal numbers
// are kept; a NaN stays one, and becomes quiet. From 16 bits: exact, and a
// signaling NaN of fp16 becomes quiet, as the hardware does it. The same bits
// on every CPU, whether it has vectors or not.
//
// `count` values each; source and destination must not overlap.

void ToBfloat16(const float* source, int64_t count, uint16_t* destination);
void FromBfloat16(const uint16_t* source, int64_t count, float* destination);
void ToFloat16(const float* source, int64_t count, uint16_t* destination);
void FromFloat16(const uint16_t* source, int64_t count, float* destination);

// The same, one value at a time, without vectors: what those must equal.
namespace scalar {
uint16_t ToBfloat16(float value);
float FromBfloat16(uint16_t bits);
uint16_t ToFloat16(float value);
float FromFloat16(uint16_t bits);
}  // namespace scalar

}  // namespace nereus
