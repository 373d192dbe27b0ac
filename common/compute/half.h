#pragma once

#include <cstdint>

namespace nereus {

// Conversions between float32 and floats of 16 bits, the wire types bfloat16 (8
// bits of exponent, 7 of mantissa) and IEEE 754 binary16, "fp16" (5 and 10). To
// 16 bits: rounded to nearest, ties to even; too large values become infinite;
// subnormal numbers are kept; a NaN stays a NaN and becomes quiet. From 16
// bits: exact; a signaling NaN of fp16 becomes quiet, as the hardware does it.
// The bits are the same on every CPU, with or without vectors.
//
// All convert `count` values; source and destination must not overlap.

void ToBfloat16(const float* source, int64_t count, uint16_t* destination);
void FromBfloat16(const uint16_t* source, int64_t count, float* destination);
void ToFloat16(const float* source, int64_t count, uint16_t* destination);
void FromFloat16(const uint16_t* source, int64_t count, float* destination);

// Conversions of one value, without vectors: the reference that the functions
// above must equal.
namespace scalar {
uint16_t ToBfloat16(float value);
float FromBfloat16(uint16_t bits);
uint16_t ToFloat16(float value);
float FromFloat16(uint16_t bits);
}  // namespace scalar

}  // namespace nereus
